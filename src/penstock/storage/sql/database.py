"""The interface of a dialect: transactions, and statements by their names.

A statement is introduced by its name in a file of the dialect's ``statements`` directory.
Parameters are written ``:name``. A list parameter is an array in PostgreSQL and a list in
parentheses in MySQL. Statements that write many rows are run by ``write``. Errors of the driver
are raised as errors of ``penstock.errors``, or as one of the exceptions below, which the engine
handles itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.extras import importing
from penstock.storage.sql.deliveries import Phase, PrimaryKey, message_id
from penstock.storage.sql.deliveries import Row as GroupRow

__all__ = [
    "LOOKS",
    "ConnectionLost",
    "Count",
    "Database",
    "FirstGroups",
    "FreshGroup",
    "NeedsTransaction",
    "NewSegment",
    "Overdue",
    "PartitionCount",
    "RetryTransaction",
    "Row",
    "RowChanged",
    "Session",
    "Stable",
    "Stale",
    "end",
    "load_module",
]

#: A result row: one value per column. Binary columns are ``bytes``, text is ``str``.
Row: TypeAlias = Sequence[Any]
#: Queue, kind (``tally.Kind``), and the change.
Count: TypeAlias = tuple[int, int, int]
#: Queue, partition, and the change of its number of unsettled deliveries.
PartitionCount: TypeAlias = tuple[int, bytes, int]
#: Tenant, published at, number of entries, their metadata, their payloads.
NewSegment: TypeAlias = tuple[int, int, int, bytes, bytes]


class FreshGroup(NamedTuple):
    """A group that is appended together with its segment."""

    queue: int
    segment: int
    """The position of the segment among those appended, from 1."""
    rank: int
    first: int
    """The index of its first member."""
    size: int
    partition_key: bytes | None
    members: bytes
    record: bytes

    def row(self, numbers: Sequence[int]) -> GroupRow:
        """The row that was inserted; the segments have these numbers."""
        segment = numbers[self.segment - 1]
        row_key = message_id(segment, self.first)
        return GroupRow(
            self.queue,
            int(Phase.FRESH),
            self.rank,
            row_key,
            segment,
            self.size,
            None,
            self.partition_key,
            None,
            self.members,
            self.record,
        )


class FirstGroups(NamedTuple):
    """What a claim assumes about the groups that precede what it hands out (C4)."""

    queue: int
    phases: Sequence[int]
    floors: Sequence[int]
    """As in ``Session.first_groups``."""
    rank: int
    row_key: int
    groups: int
    """The number of groups in these phases at or before that rank and row key."""


class RetryTransaction(Exception):
    """The database rolled the transaction back, and a retry may succeed.

    Raised for a deadlock, a serialization failure or a lock timeout.
    """


class ConnectionLost(Exception):
    """The connection was lost. ``committing`` is true if a COMMIT had been sent."""

    def __init__(self, detail: str, *, committing: bool) -> None:
        super().__init__(detail)
        self.committing = committing


class Overdue(ConnectionLost):
    """A statement or a connection attempt missed its deadline; the connection was dropped.

    The engine does not retry: the next connection may hang as well, and the caller has waited.
    """


class Stale(Exception):
    """The cached catalog is outdated, and nothing was changed."""


class NeedsTransaction(Exception):
    """The operation needs a transaction, and nothing was changed."""


class RowChanged(NeedsTransaction):
    """A group has changed since it was read, or another transaction has locked it."""


#: How often the log is read in a row while a publish has begun but not yet announced its first
#: segment, which takes it microseconds.
LOOKS: Final = 10


class Stable(NamedTuple):
    """How far the log is settled, in segment numbers."""

    settled: int
    """No new segment will appear at or below it, even if transactions are open."""
    given: int
    """The highest number that was assigned."""
    oldest: int | None
    """The minimum, over open publishing transactions, of the highest number assigned when each
    began; None if none is open. They append above it."""


class Session(ABC):
    """One transaction on one connection."""

    @abstractmethod
    async def fetch(self, statement: str, **parameters: object) -> list[Row]:
        """Run a statement, and return its rows."""

    @abstractmethod
    async def run(self, statement: str, **parameters: object) -> int:
        """Run a statement, and return the number of rows it changed."""

    @abstractmethod
    async def write(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement that writes rows, all of them together. ``rows`` may be empty."""

    @abstractmethod
    async def publishing(self) -> None:
        """Announce that this transaction will append, before it last compares the catalog's
        version.

        From here until it ends, ``Database.stable`` stays below everything it appends (L2). Waits
        before this call do not hold back readers of the log.
        """

    @abstractmethod
    async def append(self, segments: Sequence[NewSegment]) -> list[int]:
        """Append to the log; returns the numbers of the segments, in ascending order."""

    @abstractmethod
    async def first_groups(
        self, queue: int, phases: Sequence[int], floors: Sequence[int], most: int
    ) -> list[Row]:
        """Lock the first ``most`` groups of each phase, in claim order; returns rows of them.

        Fresh groups below the floor of their rank are not read (no floors: all are), and groups
        that another transaction has locked are skipped. Without a transaction nothing is locked or
        skipped.
        """

    @abstractmethod
    async def due_groups(self, queue: int, phases: Sequence[int], now: int, most: int) -> list[Row]:
        """Lock up to ``most`` groups whose ``until`` has passed; returns ``deliveries.Row`` each.

        The earliest of each phase come first. Groups that another transaction has locked are
        skipped.
        """

    @abstractmethod
    async def forget_owners(self, queue: int, partitions: Sequence[bytes]) -> int:
        """Remove the owners of those partitions that have nothing left to deliver (O1)."""

    @abstractmethod
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
        """Append segments, delete, replace and insert groups, and count, in one step.

        ``replaced`` have the keys of groups that this transaction has locked. If the key of one of
        ``groups`` is taken, the transaction fails with ``RetryTransaction``: nothing is overwritten
        (C1).

        With ``version`` this is all that the transaction writes. If nothing was done in it before,
        this may then be a transaction of its own: it checks that the catalog has this version
        (``Stale``), that the groups ``held`` are as they were read and that ``first`` is true
        (``RowChanged``), and is the last statement.

        Groups of the appended segments have ``segment`` -1 for the first of them, -2 for the
        second and so on, and the index of their first member in the low bits of ``row_key``.
        Returns the current version of the tenant's catalog, and the numbers of the segments.
        """

    async def publish(
        self,
        tenant: int,
        version: int,
        segments: Sequence[NewSegment],
        groups: Sequence[FreshGroup],
    ) -> list[int]:
        """Append segments and insert their groups, in a transaction that does nothing else.

        It is a publish, as after ``publishing``. Checks that the catalog has this version
        (``Stale``), counts the deliveries, and returns the numbers of the segments. Raises
        ``NeedsTransaction`` if the database does not support it.
        """
        del tenant, version, segments, groups
        raise NeedsTransaction

    @abstractmethod
    async def notify(self, queues: Sequence[int]) -> None:
        """Notify every server of these queues when the transaction commits.

        Does nothing if the database cannot notify.
        """


def _nobody() -> None:
    """The default: nothing to call."""


class Database(ABC):
    """A database that contains a store."""

    name: str
    """As in ``Capabilities.engine``."""
    renewed: Callable[[], None] = staticmethod(_nobody)
    """Called after a connection was opened: the server behind it may have failed over, or have
    lost data in a crash."""
    has_floors = False
    """Whether starting a search at a floor reads fewer rows (see ``floors``)."""
    publishes_in_one_statement = False
    """Whether ``Session.publish`` is supported, so that preparing its rows is worthwhile."""

    @abstractmethod
    def add_statements(self, statements: Mapping[str, str]) -> None:
        """Add statements to those of the dialect's directory."""

    @abstractmethod
    async def set_given(self, session: Session, given: int) -> None:
        """Number the next segments of the log above ``given``; for copies."""

    @abstractmethod
    async def number_rows(self, session: Session, table: str) -> None:
        """Number the next rows of a table above those that it has; for copies."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Session]:
        """A transaction: committed at the end of the block, rolled back if it raises.

        Waits for a connection if all are in use. Raises ``RetryTransaction`` and
        ``ConnectionLost``.
        """

    def single_statement(self) -> AbstractAsyncContextManager[Session]:
        """A connection on which every statement is its own transaction, for a single change.

        Reads do not lock; ``change`` checks that the rows are unchanged. Raises
        ``NeedsTransaction`` for every statement that needs a transaction, and on entry if the
        database does not support this.
        """
        raise NeedsTransaction

    @abstractmethod
    def reading(self) -> AbstractAsyncContextManager[Session]:
        """A connection on which every statement is its own transaction."""

    @abstractmethod
    def borrowed(self, connection: object) -> AbstractAsyncContextManager[Session]:
        """The caller's own connection, which has a transaction open (``BadInput`` if not).

        If the block raises, its changes are undone. The rest of the caller's transaction is not
        touched, and the caller commits it.
        """

    @abstractmethod
    async def stable(self) -> Stable:
        """How far the log is settled (L2). ``given`` is read before ``oldest``.

        Entries that any server has seen as settled are settled in every later answer. Raises
        ``RetryTransaction`` if a publishing transaction has begun and has not announced its segment
        yet.
        """

    @abstractmethod
    async def now(self) -> int:
        """The database's clock, in epoch milliseconds."""

    @abstractmethod
    async def watch(self, heard: Callable[[Sequence[int]], None]) -> None:
        """Call ``heard`` with the numbers of queues that other servers report as ready.

        A negative number denotes a queue in which deliveries were acked. With no numbers, any
        queue may be ready. If the database cannot notify, this does nothing; the engine polls
        as well.
        """

    @property
    def hears(self) -> bool:
        """Whether notifications arrive at the moment. If not, the engine polls often."""
        return False

    @property
    def has_company(self) -> bool:
        """Whether there may be other servers to ``broadcast``."""
        return False

    @abstractmethod
    async def broadcast(self, queues: Sequence[int]) -> None:
        """Notify the other servers of these queues, as in ``watch``. A lost one costs only time."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""


# -- the modules of a dialect, imported on first use, so that only its stores need the driver ----

#: The driver, and the extra of Penstock that installs it.
_DIALECTS: Final = {"postgresql": ("asyncpg", "postgres"), "mysql": ("asyncmy", "mysql")}


def load_module(dialect: str, name: str) -> ModuleType:
    """Import a module of the dialect's package."""
    driver, extra = _DIALECTS[dialect]
    with importing(extra, driver):
        return import_module(f"penstock.storage.sql.{dialect}.{name}")


# -- cancellation --------------------------------------------------------------------
# A cancellation can get lost: up to Python 3.11 ``asyncio.wait_for``, which drivers use to open
# connections, swallows it if the awaited operation completes at that very moment. So a task is
# cancelled repeatedly until it has ended.

#: Seconds before a task that has not ended is cancelled again.
_AGAIN_S: Final = 2.0


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel the tasks, and wait until they have ended. None is ignored."""
    pending = {task for task in tasks if task is not None}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
