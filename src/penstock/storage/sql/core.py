"""Core: what every room of the engine stands on, and how a transaction is made.

``transact`` is the way to change anything: it runs a function in a transaction, over and over as
long as the database asks for that (bounded, and counted) or the catalog turns out to be an older
version, and tells the listener when it is committed. ``at_once`` is a short cut that may turn out
to lead nowhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.errors import (
    CommitFailed,
    PenstockError,
    StoreBusy,
    StoreClosed,
    StoreError,
)
from penstock.model.clock import Clock
from penstock.storage.contract import EngineOptions
from penstock.storage.listener import Listener
from penstock.storage.sql.catalog import Catalog, Tenant
from penstock.storage.sql.database import (
    Again,
    Database,
    Lost,
    Moved,
    NotAtOnce,
    Overdue,
    Session,
    Stable,
    Stale,
)
from penstock.storage.sql.leases import Leases, NoServerNumber
from penstock.storage.sql.migrations import known
from penstock.storage.sql.receipts import Receipts
from penstock.storage.sql.seats import Seats
from penstock.storage.sql.segments import Segments
from penstock.storage.sql.server_numbers import ServerNumbers
from penstock.storage.sql.timers import Timers
from penstock.storage.sql.work import Work
from penstock.storage.turns import Turns

if TYPE_CHECKING:
    from penstock.storage.sql.sweep import Memory

__all__ = ["Core"]

T = TypeVar("T")

#: How often a transaction that the database rolled back is made again, and one whose catalog was
#: out of date.
_TRIES: Final = 8
_MAX_TRIES: Final = 20
#: The most that is waited before that, in milliseconds: times two to the power of the try, up to
#: the second. Servers that have met do not meet again, as each waits a random part of it.
_PAUSE_MS: Final = 5
_MAX_PAUSE_MS: Final = 1_000

_log = logging.getLogger("penstock.storage")


class Core:
    """The database, the catalog, the log, the clock, and whom to tell."""

    def __init__(self, database: Database, options: EngineOptions, clock: Clock) -> None:
        self.database = database
        self.options = options
        self.clock = clock
        self.catalog = Catalog(self.plainly, len(known(database.name)))
        self.segments = Segments()
        self.timers = Timers()
        self.leases = Leases()
        #: Set once the identity of the store is known.
        self.receipts: Receipts
        self.server_numbers = ServerNumbers(self.plainly, self.leases, options.token)
        #: By queue number and side, how many runs the last claim needed, and one more.
        self.run_hints: dict[tuple[int, bool], int] = {}
        #: By queue number, its floors (see ``floors``), and when they were read.
        self.floors: dict[int, tuple[tuple[int, ...], int]] = {}
        #: Runs in flight, as this server wrote them.
        self.seats = Seats()
        #: By queue number, until when claims are left to transactions, since others claim too.
        self.shared: dict[int, int] = {}
        self.listener = Listener()
        self.turns = Turns()
        #: Called with the queues that a commit made ready, and the negative numbers of those in
        #: which it acked deliveries, to tell other servers.
        self.spread: Callable[[set[int]], None] = _nobody
        #: Transactions that were made again, by reason, for those who look after the service.
        self.repeated: dict[str, int] = {"conflict": 0, "connection": 0, "catalog": 0}
        #: By tenant, for publishes to queues with a max_depth: they wait for one another anyway, so
        #: only one connection of a tenant does.
        self.bounded: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: What the sweep remembers from one time to the next; None: it was never made.
        self.sweeping: Memory | None = None
        #: How many transactions were committed.
        self.commits = 0
        self.closed = False
        database.renewed = self.forget

    def forget(self) -> None:
        """The database may have crashed, or another one taken over: what was remembered of it
        may be of what it has lost, and its numbers may be given out again for something else.
        """
        self.catalog.forget_all()
        self.segments.clear()
        self.timers.forget()
        self.floors.clear()
        self.seats.clear()

    def check_open(self) -> None:
        """Refuse whatever comes after ``close``."""
        if self.closed:
            raise StoreClosed("The store was closed.")

    async def transact(
        self,
        tenant: str,
        act: Callable[[Work], Awaitable[T]],
        *,
        at_once: bool = False,
        session: Callable[[], AbstractAsyncContextManager[Session]] | None = None,
    ) -> T:
        """Run ``act`` in a transaction of the tenant, and write what it did.

        ``act`` may run several times, so it keeps what it learns to itself until it returns. With
        ``at_once`` it writes once, and if it reads nothing before, that is the transaction.
        """
        self.check_open()
        opened = self.database.transaction if session is None else session
        tries = 0
        while True:
            known = await self.catalog.tenant(tenant)
            began = time.perf_counter()
            try:
                async with opened() as open_session:
                    work = Work(open_session, known, self.clock.now(), at_once=at_once)
                    try:
                        result = await act(work)
                        version = await work.write()
                    except PenstockError:
                        # Refused, perhaps because of what has changed since.
                        await self._check_version(open_session, known, work.raised)
                        raise
                    if version != known.version + work.raised:
                        raise Stale
            except (Again, Lost, NoServerNumber, Stale, StoreBusy) as error:
                tries += 1
                await self._recover(error, tries)
                # What stood in the way may be in the catalog: another server's queue, say.
                self.catalog.forget(tenant)
                continue
            await self._committed(work, time.perf_counter() - began)
            return result

    async def at_once(self, tenant: str, act: Callable[[Work], Awaitable[T]]) -> T:
        """Run ``act`` without a transaction: it reads, and one statement checks and writes.

        Raises ``NotAtOnce`` if that cannot be, for whatever reason; nothing is done then, and
        ``transact`` will say what is wrong, if anything is.
        """
        self.check_open()
        known = await self.catalog.tenant(tenant)
        began = time.perf_counter()

        async def write(session: Session) -> tuple[Work, T]:
            work = Work(session, known, self.clock.now(), at_once=True)
            result = await act(work)
            await work.write()
            return work, result

        work, result = await self.once(write)
        await self._committed(work, time.perf_counter() - began)
        return result

    async def once(self, write: Callable[[Session], Awaitable[T]]) -> T:
        """Run ``write``, which makes one change; ``NotAtOnce`` if that cannot be."""
        try:
            async with self.database.at_once() as session:
                return await write(session)
        except Moved:
            self._count("conflict")
            raise
        except Lost as error:
            if error.committing or isinstance(error, Overdue):
                # Raises: the outcome is unknown, or the caller has waited long enough.
                await self._recover(error, 1)
            raise NotAtOnce from error
        except (Again, Stale, NoServerNumber, PenstockError) as error:
            raise NotAtOnce from error

    async def read(self, tenant: str, look: Callable[[Session, Tenant], Awaitable[T]]) -> T:
        """Run ``look``, which changes nothing, with the tenant as it is now."""
        self.check_open()
        tries = 0
        while True:
            known = await self.catalog.tenant(tenant)
            try:
                async with self.database.reading() as session:
                    rows = await session.fetch("find_tenant", name=tenant)
                    if not rows or rows[0][1] != known.version:
                        raise Stale
                    return await look(session, known)
            except (Again, Lost, Stale, StoreBusy) as error:
                tries += 1
                await self._recover(error, tries)
                self.catalog.forget(tenant)

    async def plainly(
        self, act: Callable[[Session], Awaitable[T]], *, transaction: bool = False
    ) -> T:
        """Run ``act`` on a connection, for what belongs to no tenant."""

        async def ask() -> T:
            opened = self.database.transaction() if transaction else self.database.reading()
            async with opened as session:
                return await act(session)

        return await self._asked(ask)

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the database answers, asked again as long as that may help."""
        self.check_open()
        tries = 0
        while True:
            try:
                return await ask()
            except (Again, Lost, StoreBusy) as error:
                tries += 1
                await self._recover(error, tries)

    async def stable(self) -> Stable:
        """How far the log is settled (L2). The end of the log that follows from it never falls."""
        return await self._asked(self.database.stable)

    async def check_schema(self, session: Session) -> None:
        """Refuse to write where the schema is newer than this Penstock.

        For what belongs to no tenant: all else compares the version of a catalog.
        """
        self.catalog.check_schema(len(await session.fetch("migrations")))

    async def _check_version(self, session: Session, known: Tenant, raised: int) -> None:
        rows = await session.fetch("find_tenant", name=known.name)
        if not rows or rows[0][1] != known.version + raised:
            raise Stale

    async def _recover(
        self, error: Again | Lost | NoServerNumber | Stale | StoreBusy, tries: int
    ) -> None:
        """Prepare the next try, or give up with an error that says what to do."""
        if isinstance(error, NoServerNumber):
            await self.server_numbers.lease()
        if isinstance(error, Lost):
            self.forget()
            # A database that has failed over may have leased the server's number to another.
            self.leases.lapse()
        if isinstance(error, Lost) and error.committing:
            raise CommitFailed(
                f"The connection was lost during the commit, whose outcome is unknown: {error}."
            ) from error
        self._count(_reason(error))
        if isinstance(error, Overdue):
            raise StoreBusy(f"The database did not answer in time: {error}.") from error
        outdated = isinstance(error, Stale | NoServerNumber)
        if tries >= (_MAX_TRIES if outdated else _TRIES):
            if isinstance(error, StoreBusy):
                raise error
            why = "the catalog of the tenant keeps changing" if outdated else error
            raise StoreBusy(
                f"The database did not let the call through in {tries} tries: {why}."
            ) from error
        # Nobody holds what the next try of an outdated one needs: the first tries do not wait.
        doublings = tries - _TRIES if outdated else tries
        if doublings > 0:
            ceiling_ms = min(_PAUSE_MS << doublings, _MAX_PAUSE_MS)
            await asyncio.sleep(self.options.jitter(ceiling_ms) / 1000)

    def _count(self, reason: str) -> None:
        """A transaction is made again."""
        self.repeated[reason] += 1
        self.listener.repeated(reason)

    def brought(self, tenant: Tenant, queues: set[int], records: int, seconds: float) -> None:
        """A commit has brought these queues something, and has done nothing else."""
        self.commits += 1
        with _logged():
            self.listener.committed(records, seconds)
            for queue in sorted(queues):
                self.tell(tenant, queue, dead=False)
            self.spread(queues)

    async def _committed(self, work: Work, seconds: float) -> None:
        """Remember what holds now, and tell whoever has to know.

        The call has succeeded, whatever goes wrong here: it would be made twice if it failed.
        """
        self.commits += 1
        with _logged():
            await self._tell_committed(work, seconds)

    async def _tell_committed(self, work: Work, seconds: float) -> None:
        tenant = work.tenant
        if work.raised:
            self.catalog.forget(tenant.name)
            with suppress(StoreError):
                tenant = await self.catalog.reload(tenant.name)
        self.seats.wrote(work.gone, work.put)
        for segment in work.appended:
            self.segments.remember(segment)
        if work.records:
            self.listener.committed(work.records, seconds)
        ready = set(work.ready)
        for side, until in work.next_due.items():
            if self.timers.note(side, until):
                ready.add(side)
        for queue, dead in sorted(ready):
            self.tell(tenant, queue, dead=dead)
        for (queue, dead), count in sorted(work.lapsed.items()):
            found = tenant.numbered.get(queue)
            if found is not None:
                self.listener.lapsed(work.tenant.name, found.shown_as(dead=dead), count)
        if ready or work.acked:
            self.spread({queue for queue, _ in ready} | {-queue for queue in work.acked})

    async def tell_at_commit(self, session: Session, queues: set[int]) -> None:
        """Have the database tell everybody, this server too, when a caller's own commit is made."""
        if queues:
            await session.notify(sorted(queues))

    def tell(self, tenant: Tenant, queue: int, *, dead: bool) -> None:
        """Tell the listener that a queue is ready."""
        found = tenant.numbered.get(queue)
        if found is not None:
            self.listener.ready(tenant.name, found.shown_as(dead=dead))


@contextmanager
def _logged() -> Iterator[None]:
    """Log an error of a listener; it fails no verb."""
    try:
        yield
    except Exception:  # noqa: BLE001  (whatever it is, the commit is made)
        _log.exception("a listener failed after a commit")


def _reason(error: Exception) -> str:
    """Why a transaction is made again, as it is counted."""
    match error:
        case Lost():
            return "connection"
        case Stale():
            return "catalog"
        case _:
            return "conflict"


def _nobody(queues: set[int]) -> None:
    """There are no other servers to tell yet."""
