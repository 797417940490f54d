"""What a dialect provides: transactions, and statements by the names of their files.

A statement is a file of its dialect's folder ``statements``, named for what it does. Its
parameters are written ``:name``. A list stands where the dialect takes one: an array in
PostgreSQL, a list in parentheses in MySQL. Statements that write many rows at once take them
by ``write``. Whatever the driver raises leaves here as an error of ``penstock.errors``, or as
one of those below, which the engine itself deals with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.storage.sql.runs import Place
from penstock.storage.sql.runs import Row as RunRow

__all__ = [
    "LOOKS",
    "Again",
    "Count",
    "Database",
    "FreshRun",
    "Lost",
    "Moved",
    "NewSegment",
    "NotAtOnce",
    "Overdue",
    "PartitionCount",
    "Row",
    "Session",
    "Stable",
    "Stale",
]

#: What a statement gives: one value a column. Bytes are ``bytes``, text is ``str``.
Row: TypeAlias = Sequence[Any]
#: Queue, which number of it (``tally.Kind``), and by how much it changes.
Count: TypeAlias = tuple[int, int, int]
#: Queue, partition, and by how much what is unsettled there changes.
PartitionCount: TypeAlias = tuple[int, bytes, int]
#: Tenant, published at, how many entries, their heads, their payloads.
NewSegment: TypeAlias = tuple[int, int, int, bytes, bytes]


class FreshRun(NamedTuple):
    """A run of a segment that is appended with it."""

    queue: int
    segment: int
    """Its position among those that are appended, from 1."""
    rank: int
    first: int
    """Of its members."""
    size: int
    partition_key: bytes | None
    members: bytes
    life: bytes


class Again(Exception):
    """The transaction was rolled back by the database and may simply be made again.

    A deadlock, a serialization failure, a lock that was not had in time.
    """


class Lost(Exception):
    """The connection is gone. ``committing`` says whether COMMIT was on its way."""

    def __init__(self, detail: str, *, committing: bool) -> None:
        super().__init__(detail)
        self.committing = committing


class Overdue(Lost):
    """A statement or a connection missed its deadline, and the connection was dropped.

    It is not tried again here: the next connection may be as silent, and the caller has waited.
    """


class Stale(Exception):
    """The catalog that was acted on is not the present one, and nothing was done."""


class NotAtOnce(Exception):
    """What was to be done without a transaction needs one, and nothing was done."""


class Moved(NotAtOnce):
    """A run that was read is not what it was any more, or somebody else holds it."""


#: How often the log is looked at in a row while a publish is about to say where it begins: that
#: takes microseconds.
LOOKS: Final = 10


class Stable(NamedTuple):
    """How far the log is settled, in numbers of segments."""

    settled: int
    """No segment at or below it will appear any more, whatever transactions are open."""
    given: int
    """The highest number that was given out."""
    oldest: int | None
    """Of the publishing transactions that are open, the lowest number that was the highest
    given out when they began; None: none is open. What they append is above it."""


class Session(ABC):
    """One transaction on one connection."""

    @abstractmethod
    async def fetch(self, statement: str, **parameters: object) -> list[Row]:
        """The rows of a statement."""

    @abstractmethod
    async def run(self, statement: str, **parameters: object) -> int:
        """Run a statement; how many rows it changed."""

    @abstractmethod
    async def write(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement that writes rows, all of them at once. None is fine."""

    @abstractmethod
    async def publishing(self) -> None:
        """Say that this transaction is about to append, before it compares the version of the
        catalog for the last time.

        From here until it ends, ``Database.stable`` stays below whatever it appends (L2). What it
        waits for before this holds no reader of the log back.
        """

    @abstractmethod
    async def append(self, segments: Sequence[NewSegment]) -> list[int]:
        """Append to the log; the numbers of the segments, which rise."""

    @abstractmethod
    async def heads(
        self, queue: int, phases: Sequence[int], floors: Sequence[int], most: int
    ) -> list[Row]:
        """The first ``most`` runs of each phase, in claim order, locked; ``runs.Row`` each.

        Fresh ones below the floor of their rank are not looked at (no floors: all are), and
        those that another transaction has locked are passed by. Without a transaction nothing is
        locked or passed by.
        """

    @abstractmethod
    async def change(
        self,
        tenant: int,
        segments: Sequence[NewSegment],
        gone: Sequence[Place],
        runs: Sequence[RunRow],
        counts: Sequence[Count],
        partition_counts: Sequence[PartitionCount] = (),
        held: Sequence[Row] = (),
        version: int | None = None,
        replaced: Sequence[RunRow] = (),
    ) -> tuple[int, list[int]]:
        """Append segments, delete runs, replace runs, insert ``runs``, count, all at once.

        ``replaced`` have the keys of runs that this transaction has locked. If the key of one of
        ``runs`` is taken, the transaction fails with ``Again``: nothing is overwritten (C1).

        With ``version`` this is all that the transaction writes. Where nothing was done in it
        yet, this may then be a transaction of its own: it checks that the catalog has this
        version (``Stale``) and that the runs ``held`` are as they were read (``Moved``), and is
        the last statement.

        Runs of the segments that are appended name the first of them -1 in ``segment``, the
        second -2, and so on, and the index of their first member in the last bits of ``place``.
        Gives the version of the tenant's catalog as of now, and the numbers of the segments.
        """

    async def publish(
        self,
        tenant: int,
        version: int,
        segments: Sequence[NewSegment],
        runs: Sequence[FreshRun],
    ) -> list[int]:
        """Append segments and put runs of them, in a transaction that does nothing else.

        It is a publish, as after ``publishing``. Checks that the catalog has this version
        (``Stale``), counts the deliveries, and gives the numbers of the segments. Raises
        ``NotAtOnce`` where the database has no such thing.
        """
        del tenant, version, segments, runs
        raise NotAtOnce

    @abstractmethod
    async def notify(self, queues: Sequence[int]) -> None:
        """Have every server told of these queues when the transaction commits.

        Nothing, where the database has no way to do that.
        """


def _nobody() -> None:
    """Nobody has to know."""


class Database(ABC):
    """A database that has a store in it."""

    name: str
    """As in ``Capabilities.engine``."""
    renewed: Callable[[], None] = staticmethod(_nobody)
    """Called when a connection was opened: what is behind it may be another database, to which
    an older one has failed over, or have lost something in a crash."""
    has_floors = False
    """Whether a look at a rank that begins at a floor walks past less (see ``floors``)."""
    publishes_at_once = False
    """Whether ``Session.publish`` is worth making the rows for."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Session]:
        """A transaction: committed at the end of the block, rolled back if it raises.

        Raises ``Again`` and ``Lost``; waits for a connection if all are in use.
        """

    def at_once(self) -> AbstractAsyncContextManager[Session]:
        """A connection on which every statement is a transaction of its own, for one change.

        What is read is not locked; ``change`` finds out whether it still holds. Raises
        ``NotAtOnce`` for every statement that needs a transaction, and at once where the
        database has no such thing.
        """
        raise NotAtOnce

    @abstractmethod
    def reading(self) -> AbstractAsyncContextManager[Session]:
        """A connection on which every statement is a transaction of its own."""

    @abstractmethod
    def borrowed(self, connection: object) -> AbstractAsyncContextManager[Session]:
        """The caller's own connection, which has a transaction open (``BadInput`` if not).

        What is done in the block is undone if it raises; the rest of the caller's
        transaction is not touched, and is the caller's to commit.
        """

    @abstractmethod
    async def stable(self) -> Stable:
        """How far the log is settled (L2). Read in this order: ``given``, then ``oldest``.

        Entries that any server has seen as settled are settled in every later answer. Raises
        ``Again`` if a publishing transaction has begun and its segment is not known yet.
        """

    @abstractmethod
    async def now(self) -> int:
        """The database's clock, in epoch milliseconds."""

    @abstractmethod
    async def watch(self, heard: Callable[[Sequence[int]], None]) -> None:
        """Call ``heard`` with the numbers of queues that other servers say are ready.

        A negative number stands for a queue in which deliveries were acked. With none, any
        queue may be ready. Where the database has no way to say so this does
        nothing; the engine polls as well.
        """

    @property
    def hears(self) -> bool:
        """Whether what others tell is heard at the moment. If it is not, polls are frequent."""
        return False

    @property
    def has_company(self) -> bool:
        """Whether there may be somebody to ``tell``."""
        return False

    @abstractmethod
    async def tell(self, queues: Sequence[int]) -> None:
        """Tell the other servers of these queues, as in ``watch``. Losing it loses time only."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""
