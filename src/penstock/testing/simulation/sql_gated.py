"""A database where every statement and commit waits at a gate, and may fail there.

``GatedDatabase`` is between one engine and a real database, at the interface that every dialect
has. A fault that is due hits the next operation that it applies to:

- ``drop``: the connection is lost before the operation reaches the database;
- ``lost_reply``: a commit is made, but the connection is lost before the reply arrives;
- ``abort``: the database rolls the transaction back, as after a deadlock.

An operation that was sent is never cancelled half way, because real time would decide its outcome:
the cancellation of a caller takes effect before the next operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from penstock.storage.sql.database import (
    ConnectionLost,
    Count,
    Database,
    FirstGroups,
    FreshGroup,
    NewSegment,
    PartitionCount,
    RetryTransaction,
    Row,
    Session,
    Stable,
)
from penstock.storage.sql.deliveries import PrimaryKey
from penstock.storage.sql.deliveries import Row as GroupRow
from penstock.testing.simulation.sql_loop import Gate
from penstock.testing.simulation.sql_observer import Observer

__all__ = ["Faults", "GatedDatabase", "GatedSession"]

T = TypeVar("T")


class Faults:
    """Pending faults, and how many have occurred. All servers of a group share them."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._due: list[str] = []
        self.struck: dict[str, int] = {}

    def add(self, kind: str) -> None:
        """Make one fault of this kind occur soon."""
        self._due.append(kind)

    def end(self) -> None:
        """Inject no more faults."""
        self._due.clear()

    def strikes(self, *kinds: str) -> str | None:
        """The fault that occurs now, if one of these kinds is due."""
        for kind in self._due:
            if kind in kinds:
                self._due.remove(kind)
                self.count(kind)
                return kind
        return None

    def count(self, kind: str) -> None:
        """Count a fault that has occurred."""
        self.struck[kind] = self.struck.get(kind, 0) + 1
        self._gate.note(kind)


class GatedDatabase(Database):
    """The database as seen by one server."""

    def session(self, inner: Session, order: int, *, commits_itself: bool) -> GatedSession:
        """A session as seen by the engine."""
        return GatedSession(self, inner, order, commits_itself=commits_itself)

    def __init__(
        self, inner: Database, server: int, gate: Gate, faults: Faults, observer: Observer
    ) -> None:
        self._inner = inner
        self._server = server
        self._gate = gate
        self._faults = faults
        self._observer = observer
        self.name = inner.name
        self.has_floors = inner.has_floors
        self.publishes_in_one_statement = inner.publishes_in_one_statement

    # -- sessions ----------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Session]:
        return self._gated(self._inner.transaction(), "transaction")

    def single_statement(self) -> AbstractAsyncContextManager[Session]:
        return self._gated(self._inner.single_statement(), "at once")

    def reading(self) -> AbstractAsyncContextManager[Session]:
        return self._gated(self._inner.reading(), "reading")

    def borrowed(self, connection: object) -> AbstractAsyncContextManager[Session]:
        raise NotImplementedError("a simulation has no callers' transactions")

    @asynccontextmanager
    async def _gated(
        self, opened: AbstractAsyncContextManager[Session], kind: str
    ) -> AsyncIterator[Session]:
        order = self._gate.begin_session()
        # Taking a connection changes nothing that is visible to another server.
        entered: list[Session] = []

        async def enter() -> None:
            entered.append(await opened.__aenter__())

        try:
            await self.through(None, enter, order)
        except asyncio.CancelledError as gone:
            if entered:
                await self.through(None, _exit(opened, gone), order)
            raise
        (inner,) = entered
        session = self.session(inner, order, commits_itself=kind == "at once")
        ends = kind if kind == "transaction" else None
        try:
            yield session
        except BaseException as error:
            if not await self.through(ends and "roll back", _exit(opened, error), order):
                raise
            return
        if ends is None:
            await self.through(None, _exit(opened, None), order)
            return
        if self._faults.strikes("drop"):
            await self.drop(inner)
        await self.through("commit", _exit(opened, None), order)
        if session.wrote and self._faults.strikes("lost_reply"):
            self.renewed()
            raise ConnectionLost("simulated: no answer to the commit", committing=True)

    async def through(
        self, label: str | None, operation: Callable[[], Awaitable[T]], order: int
    ) -> T:
        """Run the operation when the gate lets it pass, to its end even if cancelled.

        Without a label it does not wait at the gate.
        """
        if self._gate.open:
            return await operation()
        await self._gate.enter(self._server, label, order)
        task = asyncio.ensure_future(_run(operation))
        task.add_done_callback(lambda _: self._gate.leave())
        gone: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as cancelled:
                gone = cancelled
        if gone is not None:
            task.exception()
            raise gone
        return task.result()

    def fault(self, *kinds: str) -> str | None:
        """The fault that hits the next statement, if one is due."""
        return self._faults.strikes(*kinds)

    async def drop(self, session: Session) -> None:
        """Drop the connection of a session, and wait until the database has noticed."""
        raw: Any = session
        if self.name == "postgresql":
            number = raw._connection.get_server_pid()
            raw._connection.terminate()
        elif raw.link is None:
            return
        else:
            number = raw.link.connection.thread_id()
            raw.link.close()
        # The socket is closed by callbacks.
        for _ in range(3):
            await asyncio.sleep(0)
        self._observer.wait_for_end(number)
        self.renewed()

    # -- the rest ----------------------------------------------------------------------

    def add_statements(self, statements: Mapping[str, str]) -> None:
        self._inner.add_statements(statements)

    async def set_given(self, session: Session, given: int) -> None:
        raise NotImplementedError("a simulation copies no store")

    async def number_rows(self, session: Session, table: str) -> None:
        raise NotImplementedError("a simulation copies no store")

    async def stable(self) -> Stable:
        return await self.through("stable", self._inner.stable, self._gate.begin_session())

    async def now(self) -> int:
        return await self.through("now", self._inner.now, self._gate.begin_session())

    async def watch(self, heard: Callable[[Sequence[int]], None]) -> None:
        """Do nothing: real time would decide when servers are notified of each other."""

    async def broadcast(self, queues: Sequence[int]) -> None:
        """Do nothing: there is no listener."""

    async def close(self) -> None:
        """Keep the connections open for the next server."""


async def _run(operation: Callable[[], Awaitable[T]]) -> T:
    return await operation()


def _exit(
    opened: AbstractAsyncContextManager[Session], error: BaseException | None
) -> Callable[[], Awaitable[bool | None]]:
    """End the block; ``error`` is what it raised."""

    async def end() -> bool | None:
        if error is None:
            return await opened.__aexit__(None, None, None)
        return await opened.__aexit__(type(error), error, error.__traceback__)

    return end


class GatedSession(Session):
    """A session whose statements wait at the gate."""

    def __init__(
        self, database: GatedDatabase, inner: Session, order: int, *, commits_itself: bool
    ) -> None:
        self._database = database
        self._order = order
        self._inner = inner
        self._commits_itself = commits_itself
        #: Whether anything was written in the session.
        self.wrote = False

    async def _through(self, label: str, operation: Callable[[], Awaitable[T]]) -> T:
        match self._database.fault("drop", "abort"):
            case "drop":
                await self._database.drop(self._inner)
            case "abort":
                raise RetryTransaction("simulated")
            case _:
                pass
        return await self._database.through(label, operation, self._order)

    async def fetch(self, statement: str, **parameters: object) -> list[Row]:
        return await self._through(statement, lambda: self._inner.fetch(statement, **parameters))

    async def run(self, statement: str, **parameters: object) -> int:
        self.wrote = True
        return await self._through(statement, lambda: self._inner.run(statement, **parameters))

    async def write(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            self.wrote = True
            await self._through(statement, lambda: self._inner.write(statement, rows))

    async def publishing(self) -> None:
        await self._through("publishing", self._inner.publishing)

    async def append(self, segments: Sequence[NewSegment]) -> list[int]:
        self.wrote = True
        return await self._through("append", lambda: self._inner.append(segments))

    async def first_groups(
        self, queue: int, phases: Sequence[int], floors: Sequence[int], most: int
    ) -> list[Row]:
        return await self._through(
            "first_groups", lambda: self._inner.first_groups(queue, phases, floors, most)
        )

    async def due_groups(self, queue: int, phases: Sequence[int], now: int, most: int) -> list[Row]:
        return await self._through(
            "due_groups", lambda: self._inner.due_groups(queue, phases, now, most)
        )

    async def forget_owners(self, queue: int, partitions: Sequence[bytes]) -> int:
        self.wrote = True
        return await self._through(
            "forget_owners", lambda: self._inner.forget_owners(queue, partitions)
        )

    async def change(
        self,
        tenant: int,
        segments: Sequence[NewSegment],
        gone: Sequence[PrimaryKey],
        groups: Sequence[GroupRow],
        counts: Sequence[Count],
        partition_counts: Sequence[PartitionCount] = (),
        held: Sequence[Row] = (),
        version: int | None = None,
        replaced: Sequence[GroupRow] = (),
        first: FirstGroups | None = None,
    ) -> tuple[int, list[int]]:
        self.wrote = True
        written = segments, gone, groups, counts, partition_counts
        changed = await self._through(
            "change",
            lambda: self._inner.change(tenant, *written, held, version, replaced, first),
        )
        self._lose_reply()
        return changed

    async def publish(
        self,
        tenant: int,
        version: int,
        segments: Sequence[NewSegment],
        groups: Sequence[FreshGroup],
    ) -> list[int]:
        self.wrote = True
        numbers = await self._through(
            "publish", lambda: self._inner.publish(tenant, version, segments, groups)
        )
        self._lose_reply()
        return numbers

    async def notify(self, queues: Sequence[int]) -> None:
        """Do nothing: there is no listener."""

    def _lose_reply(self) -> None:
        """A single statement commits itself: its reply may be lost like that of a commit."""
        if self._commits_itself and self._database.fault("lost_reply"):
            self._database.renewed()
            raise ConnectionLost("simulated: no answer to the statement", committing=True)
