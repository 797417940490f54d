"""Core: the state that the engine's modules share, and how transactions run.

``transact`` runs a function in a transaction and commits it. It retries while the database rolls
the transaction back (bounded, and counted) or the cached catalog turns out to be outdated, and
notifies the listener after the commit. ``single_statement`` is an optimistic shortcut without a
transaction; it raises ``NeedsTransaction`` where it does not apply.
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
from penstock.storage.sql.claim_numbers import Leases, NoServerNumber, Receipts, ServerNumbers
from penstock.storage.sql.database import (
    ConnectionLost,
    Database,
    NeedsTransaction,
    Overdue,
    RetryTransaction,
    Row,
    RowChanged,
    Session,
    Stable,
    Stale,
)
from penstock.storage.sql.deliveries import InFlightRows
from penstock.storage.sql.front import Fronts
from penstock.storage.sql.migrations import known
from penstock.storage.sql.segments import Segments
from penstock.storage.sql.work import Work
from penstock.storage.turns import Turns

if TYPE_CHECKING:
    from penstock.storage.sql.sweep import Memory

__all__ = ["Core", "Timers"]

T = TypeVar("T")

#: How often a transaction is retried that the database rolled back, and one with an outdated
#: catalog.
_TRIES: Final = 8
_MAX_TRIES: Final = 20
#: The pause before a retry is random, so that conflicting servers separate: at most this many
#: milliseconds times two to the power of the try, up to one second.
_PAUSE_MS: Final = 5
_MAX_PAUSE_MS: Final = 1_000

_log = logging.getLogger("penstock.storage")


class Core:
    """The database, the catalog, the log, the clock, and the listener."""

    def __init__(self, database: Database, options: EngineOptions, clock: Clock) -> None:
        self.database = database
        self.options = options
        self.clock = clock
        self.catalog = Catalog(self.run_without_tenant, len(known(database.name)))
        self.segments = Segments()
        self.timers = Timers()
        self.leases = Leases()
        #: Set once the identity of the store is known.
        self.receipts: Receipts
        self.server_numbers = ServerNumbers(self.run_without_tenant, self.leases, options.token)
        #: By queue number and side, the number of groups that the last claim needed, plus one.
        self.group_hints: dict[tuple[int, bool], int] = {}
        #: By queue number, its floors (see ``floors``) and when they were read.
        self.floors: dict[int, tuple[tuple[int, ...], int]] = {}
        #: The groups in flight that this server wrote.
        self.in_flight_rows = InFlightRows()
        #: The groups that the next claims hand out.
        self.fronts = Fronts()
        #: By queue number, until when claims use transactions because other servers claim too.
        self.shared: dict[int, int] = {}
        self.listener = Listener()
        self.turns = Turns()
        #: Notifies other servers. Called with the numbers of the queues that a commit made ready,
        #: and the negative numbers of queues in which it acked deliveries.
        self.broadcast: Callable[[set[int]], None] = _nobody
        #: Appends the dead-letter copies of a transaction.
        self.append_copies: Callable[[Work], Awaitable[None]] = _nothing
        #: Retried transactions by reason, for operators.
        self.repeated: dict[str, int] = {"conflict": 0, "connection": 0, "catalog": 0}
        #: By tenant, for publishes to queues with a max_depth: they would wait for each other in
        #: the database anyway, and this way only one connection per tenant waits.
        self.bounded: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: State that the sweep keeps between sweeps; None before the first sweep.
        self.sweeping: Memory | None = None
        #: The number of committed transactions.
        self.commits = 0
        self.closed = False
        database.renewed = self.forget

    def forget(self) -> None:
        """Drop all caches: the database may have crashed or failed over. It may have lost cached
        data, and may assign the same numbers to different data.
        """
        self.catalog.forget_all()
        self.segments.clear()
        self.timers.forget()
        self.floors.clear()
        self.in_flight_rows.clear()
        self.fronts.clear()

    def check_open(self) -> None:
        """Refuse calls after ``close``."""
        if self.closed:
            raise StoreClosed("The store was closed.")

    async def transact(
        self,
        tenant: str,
        act: Callable[[Work], Awaitable[T]],
        *,
        single_statement: bool = False,
        session: Callable[[], AbstractAsyncContextManager[Session]] | None = None,
    ) -> T:
        """Run ``act`` in a transaction of the tenant, and commit its changes.

        ``act`` may run several times, so it must have no side effects before it returns. With
        ``single_statement`` it writes once; if it also reads nothing first, that write is the
        transaction.
        """
        self.check_open()
        opened = self.database.transaction if session is None else session
        tries = 0
        while True:
            known = await self.catalog.tenant(tenant)
            began = time.perf_counter()
            try:
                async with opened() as open_session:
                    work = Work(
                        open_session, known, self.clock.now(), single_statement=single_statement
                    )
                    try:
                        result = await act(work)
                        if work.to_copy:
                            await self.append_copies(work)
                        version = await work.write()
                    except PenstockError:
                        # The catalog may be outdated, which may be the reason for the refusal.
                        await self._check_version(open_session, known, work.raised)
                        raise
                    if version != known.version + work.raised:
                        raise Stale
            except (RetryTransaction, ConnectionLost, NoServerNumber, Stale, StoreBusy) as error:
                tries += 1
                await self._recover(error, tries)
                # The conflict may be a change of the catalog, such as another server's queue.
                self.catalog.forget(tenant)
                continue
            await self._committed(work, time.perf_counter() - began)
            return result

    async def single_statement(self, tenant: str, act: Callable[[Work], Awaitable[T]]) -> T:
        """Run ``act`` without a transaction: it reads, then one statement checks and writes.

        Raises ``NeedsTransaction`` if that is not possible. Then nothing was changed, and the
        caller uses ``transact``, which raises the actual error if there is one.
        """
        self.check_open()
        known = await self.catalog.tenant(tenant)
        began = time.perf_counter()

        async def write(session: Session) -> tuple[Work, T]:
            work = Work(session, known, self.clock.now(), single_statement=True)
            result = await act(work)
            await work.write()
            return work, result

        work, result = await self.single_write(write)
        await self._committed(work, time.perf_counter() - began)
        return result

    async def single_write(self, write: Callable[[Session], Awaitable[T]]) -> T:
        """Run ``write``, which makes one change. Raises ``NeedsTransaction`` if it cannot."""
        try:
            async with self.database.single_statement() as session:
                return await write(session)
        except RowChanged:
            self._count("conflict")
            raise
        except ConnectionLost as error:
            if error.committing or isinstance(error, Overdue):
                # Raises: the outcome is unknown, or the caller has already waited long enough.
                await self._recover(error, 1)
            raise NeedsTransaction from error
        except (RetryTransaction, Stale, NoServerNumber, PenstockError) as error:
            raise NeedsTransaction from error

    async def read(self, tenant: str, look: Callable[[Session, Tenant], Awaitable[T]]) -> T:
        """Run ``look``, which changes nothing, with the tenant's current catalog."""
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
            except (RetryTransaction, ConnectionLost, Stale, StoreBusy) as error:
                tries += 1
                await self._recover(error, tries)
                self.catalog.forget(tenant)

    async def run_without_tenant(
        self, act: Callable[[Session], Awaitable[T]], *, transaction: bool = False
    ) -> T:
        """Run ``act`` on a connection, outside any tenant."""

        async def ask() -> T:
            opened = self.database.transaction() if transaction else self.database.reading()
            async with opened as session:
                return await act(session)

        return await self._asked(ask)

    async def fetch(self, statement: str, **parameters: object) -> list[Row]:
        """Run one statement that reads, outside any tenant."""
        return await self.run_without_tenant(lambda session: session.fetch(statement, **parameters))

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The result of ``ask``, retried after temporary errors."""
        self.check_open()
        tries = 0
        while True:
            try:
                return await ask()
            except (RetryTransaction, ConnectionLost, StoreBusy) as error:
                tries += 1
                await self._recover(error, tries)

    async def stable(self) -> Stable:
        """How far the log is settled (L2). The end of the log derived from it never moves back."""
        return await self._asked(self.database.stable)

    async def check_schema(self, session: Session) -> None:
        """Refuse to write if the schema is newer than this Penstock.

        For writes outside any tenant: all others compare the version of a catalog.
        """
        self.catalog.check_schema(len(await session.fetch("migrations")))

    async def _check_version(self, session: Session, known: Tenant, raised: int) -> None:
        rows = await session.fetch("find_tenant", name=known.name)
        if not rows or rows[0][1] != known.version + raised:
            raise Stale

    async def _recover(
        self,
        error: RetryTransaction | ConnectionLost | NoServerNumber | Stale | StoreBusy,
        tries: int,
    ) -> None:
        """Prepare a retry, or raise an error for the caller."""
        if isinstance(error, NoServerNumber):
            await self.server_numbers.lease()
        if isinstance(error, ConnectionLost):
            self.forget()
            # A database that has failed over may have leased this server's number to another.
            self.leases.lapse()
        if isinstance(error, ConnectionLost) and error.committing:
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
        # An outdated transaction conflicts with no lock: its first retries do not wait.
        doublings = tries - _TRIES if outdated else tries
        if doublings > 0:
            ceiling_ms = min(_PAUSE_MS << doublings, _MAX_PAUSE_MS)
            await asyncio.sleep(self.options.jitter(ceiling_ms) / 1000)

    def _count(self, reason: str) -> None:
        """Count a retried transaction."""
        self.repeated[reason] += 1
        self.listener.repeated(reason)

    def brought(self, tenant: Tenant, queues: set[int], records: int, seconds: float) -> None:
        """Record a commit that only added messages to these queues."""
        self.commits += 1
        with _logged():
            self.listener.committed(records, seconds)
            for queue in sorted(queues):
                self._counted(tenant, queue)
                self.notify(tenant, queue, dead=False)
            self.broadcast(queues)

    async def _committed(self, work: Work, seconds: float) -> None:
        """Update the caches and notify, after a commit.

        Errors here are only logged: the caller would repeat a failed call that is committed.
        """
        self.commits += 1
        with _logged():
            await self._notify_committed(work, seconds)

    async def _notify_committed(self, work: Work, seconds: float) -> None:
        tenant = work.tenant
        if work.raised:
            self.catalog.forget(tenant.name)
            with suppress(StoreError):
                tenant = await self.catalog.reload(tenant.name)
        self.in_flight_rows.wrote(work.gone, work.put)
        self.fronts.wrote(work.gone, work.put)
        for segment in work.appended:
            self.segments.remember(segment)
        if work.records:
            self.listener.committed(work.records, seconds)
        ready = set(work.ready)
        for side, due in work.asked_due.items():
            self.timers.asked(side, work.now, due)
        for side, until in work.next_due.items():
            if self.timers.note(side, until):
                ready.add(side)
        for queue, dead in sorted(ready):
            self.notify(tenant, queue, dead=dead)
        for (queue, dead), count in sorted(work.lapsed.items()):
            found = tenant.numbered.get(queue)
            if found is not None:
                self.listener.lapsed(work.tenant.name, found.shown_as(dead=dead), count)
        for queue in sorted(work.counted):
            self._counted(tenant, queue)
        for queue in sorted(work.ended):
            found = tenant.numbered.get(queue)
            if found is not None:
                self.listener.ended(tenant.name, found.name)
        if ready or work.ended:
            self.broadcast({queue for queue, _ in ready} | {-queue for queue in work.ended})

    def _counted(self, tenant: Tenant, queue: int) -> None:
        found = tenant.numbered.get(queue)
        if found is not None:
            self.listener.counted(tenant.name, found.name)

    async def notify_at_commit(self, session: Session, queues: set[int]) -> None:
        """Have the database notify all servers, this one too, when the caller commits."""
        if queues:
            await session.notify(sorted(queues))

    def notify(self, tenant: Tenant, queue: int, *, dead: bool) -> None:
        """Notify the listener that a queue is ready."""
        found = tenant.numbered.get(queue)
        if found is not None:
            self.listener.ready(tenant.name, found.shown_as(dead=dead))


@contextmanager
def _logged() -> Iterator[None]:
    """Log errors of a listener instead of raising them."""
    try:
        yield
    except Exception:  # noqa: BLE001  (the change is already committed)
        _log.exception("a listener failed after a commit")


def _reason(error: Exception) -> str:
    """The reason for a retry, as a counter name."""
    match error:
        case ConnectionLost():
            return "connection"
        case Stale():
            return "catalog"
        case _:
            return "conflict"


def _nobody(queues: set[int]) -> None:
    """Used until other servers can be notified."""


async def _nothing(work: Work) -> None:
    """Used until the engine is open."""


# -- due times -----------------------------------------------------------------------
# A claim first moves what is due, which costs a statement. So a server remembers the next due time
# of every queue and asks then; it also asks at intervals, because other servers write too. A
# waiting caller has asked already (``next_due``). Only latency depends on this (C5): deliveries are
# checked again before they are handed out.

#: How long a server relies on its memory.
_TRUST_MS: Final = 200


class Timers:
    """Due times by queue number and side (true for the dead letters)."""

    def __init__(self) -> None:
        #: When the database was last asked, None if a claim has to ask, and the next known due
        #: time.
        self._known: dict[tuple[int, bool], tuple[int | None, int | None]] = {}

    def is_due(self, side: tuple[int, bool], now: int) -> bool:
        """Whether to ask the database."""
        asked_at, due = self._known.get(side, (None, None))
        if asked_at is None:
            return True
        return (due is not None and due <= now) or not 0 <= now - asked_at < _TRUST_MS

    def ask(self, side: tuple[int, bool]) -> None:
        """A transaction moves what is due, and calls ``asked`` when it is committed.

        Until then nothing is known: if it is rolled back, so is what it moved.
        """
        self._known.pop(side, None)

    def asked(self, side: tuple[int, bool], now: int, due: int | None) -> None:
        """Record the database's answer, or an earlier time that was noted since."""
        _, noted = self._known.get(side, (None, None))
        times = [time for time in (due, noted) if time is not None]
        self._known[side] = (now, min(times, default=None))

    def note(self, side: tuple[int, bool], until: int) -> bool:
        """Record a due time; returns whether it is earlier than the known one."""
        asked_at, due = self._known.get(side, (None, None))
        if due is not None and due <= until:
            return asked_at is None
        self._known[side] = (asked_at, until)
        return True

    def forget(self) -> None:
        """Forget all due times, so that the next claims ask."""
        self._known.clear()
