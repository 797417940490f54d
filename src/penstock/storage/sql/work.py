"""Work: one transaction: the runs it holds, what it writes, and the queues to notify.

Runs are read under lock, changed here, and written together (S3). With ``at_once`` they are read
without locks, and the database checks that they are unchanged when it writes. Deliveries that
reach the same state are grouped: a settle that acks forty of a run makes one run of them. No
notification is sent before the commit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.model.message import Message
from penstock.model.queue import Ordering
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.database import Again, Count, NewSegment, PartitionCount, Row, Session
from penstock.storage.sql.deliveries import (
    DEAD,
    LIVE,
    Kind,
    Life,
    Phase,
    Place,
    Run,
    message_id,
    segment_of,
)
from penstock.storage.sql.deliveries import Row as RunRow
from penstock.storage.sql.segments import Segment

__all__ = ["Work"]

_WAITING: Final = frozenset(
    {Phase.FRESH, Phase.RETURNED, Phase.DELAYED, Phase.DEAD_RETURNED, Phase.DEAD_DELAYED}
)
_TIMED: Final = frozenset(
    {Phase.DELAYED, Phase.IN_FLIGHT, Phase.DEAD_DELAYED, Phase.DEAD_IN_FLIGHT}
)


class _Held:
    """A run under lock: its original row, and the members left in it."""

    __slots__ = ("key", "left", "row", "run", "size")

    def __init__(self, run: Run, key: Place, row: Row) -> None:
        self.run = run
        self.row = row
        self.key = key
        self.size = len(run.members)
        self.left = run.members
        """Members that were not moved."""


class Work:
    """The changes of one transaction in one tenant."""

    def __init__(
        self, session: Session, tenant: Tenant, now: int, *, at_once: bool = False
    ) -> None:
        self.session = session
        #: Whether to write everything in one statement, if that is possible.
        self.at_once = at_once
        self.tenant = tenant
        self.now = now
        self._held: dict[int, _Held] = {}
        """By the identity of the run object."""
        self._added: dict[tuple[int, Phase, int, int, Life], list[int]] = {}
        self._counts: Counter[tuple[int, int]] = Counter()
        #: By queue and partition, the change of the number of unsettled deliveries.
        self._partitions: Counter[tuple[int, str]] = Counter()
        #: Queue number and side (true for the dead letters) of claims that may return more (C5).
        self.ready: set[tuple[int, bool]] = set()
        #: Queues with a tally row from this transaction, which other servers notice.
        self._noticed: set[int] = set()
        self.lapsed: Counter[tuple[int, bool]] = Counter()
        #: Queues with acked deliveries: callers may wait for their results.
        self.acked: set[int] = set()
        #: The earliest time at which a written run of the queue is due or lapses.
        self.next_due: dict[tuple[int, bool], int] = {}
        #: Partitions of ordered queues that a delivery has left.
        self._left_partitions: dict[int, set[str]] = {}
        self._closed_keys: set[int] = set()
        #: Appended segments, to be cached after the commit.
        self.appended: list[Segment] = []
        self._segments: list[NewSegment] = []
        #: The numbers of the segments that the last write appended.
        self.numbers: list[int] = []
        #: The version of the catalog at the last write.
        self._version: int | None = None
        #: How many times this transaction itself has raised the version of the catalog.
        self.raised = 0
        #: The number of rows written.
        self.records = 0
        #: Written runs, and the keys of deleted ones.
        self.put: list[RunRow] = []
        self.gone: list[Place] = []

    # -- runs --------------------------------------------------------------------------

    def hold(self, row: Row) -> Run:
        """Register a run that was read under lock."""
        run = Run.read(row)
        assert run.place is not None
        self._held[id(run)] = _Held(run, (run.queue, int(run.phase), run.rank, run.place), row)
        return run

    def hold_all(self, rows: Iterable[Row]) -> list[Run]:
        """Register runs that were read under lock."""
        return [self.hold(row) for row in rows]

    def hold_new(self, rows: Iterable[Row]) -> list[Run]:
        """Register runs that were read under lock, except those already held."""
        held = {known.key for known in self._held.values()}
        return [self.hold(row) for row in rows if tuple(row[:4]) not in held]

    async def lock_runs(
        self, queue: int, phase: Phase, places: Iterable[tuple[int, int]]
    ) -> list[Run]:
        """Lock and register the runs of a phase at these ranks and places; some may be gone."""
        by_rank: defaultdict[int, set[int]] = defaultdict(set)
        for rank, place in places:
            by_rank[rank].add(place)
        runs: list[Run] = []
        for rank, wanted in sorted(by_rank.items()):
            rows = await self.session.fetch(
                "lock_runs", queue=queue, phase=int(phase), rank=rank, places=sorted(wanted)
            )
            runs += self.hold_all(rows)
        return runs

    def let_go(self, runs: Iterable[Run]) -> None:
        """Drop runs that are not needed after all, or will be read again."""
        for run in runs:
            del self._held[id(run)]

    def undo(self) -> None:
        """Discard all changes that were not written."""
        self._clear()
        self.ready.clear()
        self.lapsed.clear()
        self.acked.clear()

    def left(self, run: Run) -> Sequence[int]:
        """The members of a held run that were not moved or dropped yet."""
        return self._held[id(run)].left

    def add(
        self, queue: int, phase: Phase, rank: int, segment: int, members: Iterable[int], life: Life
    ) -> None:
        """Add new deliveries."""
        self._added.setdefault((queue, phase, rank, segment, life), []).extend(members)

    def add_message(
        self, queue: Queue, message: Message, expires_at: int | None, entry: int | None
    ) -> None:
        """Add a delivery of a message that is in the log already; ``entry`` replaces its first."""
        delayed = message.deliver_at > self.now
        life = Life(
            joined_at=self.now,
            expires_at=expires_at,
            due_at=message.deliver_at if delayed else None,
            entry=entry,
            keyed=message.key is not None,
            partition=(message.partition_key or "") if queue.ordered else None,
        )
        segment, index = segment_of(message.id)
        phase = Phase.DELAYED if delayed else Phase.RETURNED
        self.add(queue.number, phase, 9 - message.priority, segment, [index], life)

    def append(self, segments: Sequence[NewSegment]) -> list[int]:
        """Append segments with the next write; returns placeholders for their numbers."""
        self._segments = list(segments)
        return [-ordinal for ordinal in range(1, len(segments) + 1)]

    async def append_now(self, segments: Sequence[NewSegment]) -> list[int]:
        """Append segments immediately; returns their numbers."""
        numbers = await self.session.append(segments)
        self.records += len(numbers)
        return numbers

    def drop(self, run: Run, members: Iterable[int]) -> None:
        """Remove some deliveries of a held run."""
        self._take(run, members)
        self._leave_partition(run)

    def move(self, run: Run, members: Sequence[int], phase: Phase, life: Life) -> None:
        """Move some deliveries of a held run to another phase or record."""
        self._take(run, members)
        if phase not in LIVE:
            self._leave_partition(run)
        self.add(run.queue, phase, run.rank, run.segment, members, life)

    def _take(self, run: Run, members: Iterable[int]) -> None:
        held = self._held[id(run)]
        gone = members if isinstance(members, list | range) else list(members)
        before = held.left
        if list(before[: len(gone)]) == list(gone):
            # Claims take the first of many: do not iterate over the rest.
            held.left = before[len(gone) :]
        else:
            dropped = set(gone)
            held.left = [index for index in before if index not in dropped]
        assert len(held.left) == len(before) - len(gone), "a delivery is moved once"

    def _leave_partition(self, run: Run) -> None:
        """Note that the partition may be empty, in which case it loses its owner."""
        if run.life.partition is not None and run.phase in LIVE:
            self._left_partitions.setdefault(run.queue, set()).add(run.life.partition)

    def close_keys(self, run: Run, members: Iterable[int]) -> None:
        """Close the keys of these messages: the next publish is a new message."""
        self._closed_keys.update(message_id(run.segment, index) for index in members)

    # -- counters and notifications ----------------------------------------------------

    def count(self, queue: int, kind: Kind, number: int = 1) -> None:
        """Count something that does not follow from the phases."""
        self._counts[queue, int(kind)] += number

    def tell(self, queue: Queue, *, dead: bool = False) -> None:
        """Notify after the commit that a claim of the queue may return more."""
        self.ready.add((queue.number, dead))

    # -- writing -----------------------------------------------------------------------

    async def write(self) -> int:
        """Write all changes so far; returns the version of the tenant's catalog.

        The runs are no longer held afterwards, but stay locked in the database: a verb that
        first moves what is due writes that, and then reads the runs again.
        """
        gone: list[Place] = []
        changed: list[Row] = []
        runs: list[Run] = []
        for held in self._held.values():
            left = held.left
            if len(left) == held.size:
                continue
            changed.append(held.row)
            run = held.run
            self._count_phase(run, len(left) - held.size)
            if not left:
                gone.append(held.key)
                continue
            rest = Run(run.queue, run.phase, run.rank, run.segment, left, run.life)
            if rest.key() != held.key:
                gone.append(held.key)
            runs.append(rest)
        for (queue, phase, rank, segment, life), members in self._added.items():
            run = Run(queue, phase, rank, segment, sorted(members), life)
            self._count_phase(run, len(members))
            self._note(run)
            runs.append(run)
        rows = [run.row() for run in runs]
        # A run that keeps its key, because its deadline moved as a whole, is replaced. No other
        # row is: an existing one belongs to another transaction.
        locked = {(row[0], row[1], row[2], row[3]) for row in changed}
        replaced = [row for row in rows if row[:4] in locked]
        inserted = [row for row in rows if row[:4] not in locked] if replaced else rows
        kept = {row[:4] for row in replaced}
        if len(kept) < len(replaced):
            raise Again("two rows have one key")
        gone = [key for key in gone if key not in kept]
        counts = [(q, k, n) for (q, k), n in self._counts.items() if n]
        counts += self._news(counts)
        partition_counts: list[PartitionCount] = [
            (q, partition.encode(), n) for (q, partition), n in self._partitions.items() if n
        ]
        if self._version is not None and not (
            self._segments or gone or rows or counts or self._closed_keys or self._left_partitions
        ):
            self._clear()
            return self._version
        more = self._left_partitions or self._closed_keys
        version, self.numbers = await self.session.change(
            self.tenant.number,
            self._segments,
            gone,
            inserted,
            counts,
            partition_counts,
            changed,
            self.tenant.version if self.at_once and not more else None,
            replaced,
        )
        self._version = version
        self.put += rows
        self.gone += gone
        self.records += len(self._segments) + len(gone) + len(rows) + len(counts)
        self.records += len(partition_counts)
        self._segments = []
        for queue, partitions in self._left_partitions.items():
            self.ready.add((queue, False))
            await self.session.forget_owners(queue, [p.encode() for p in sorted(partitions)])
        if self._closed_keys:
            await self.session.run("close_keys", messages=sorted(self._closed_keys))
        self._clear()
        return version

    def _clear(self) -> None:
        self._held.clear()
        self._added.clear()
        self._counts.clear()
        self._partitions.clear()
        self._left_partitions.clear()
        self._closed_keys.clear()

    def _news(self, counts: Sequence[Count]) -> list[Count]:
        """A row for every queue that is ready although none of its counters changed.

        Servers that poll notice new rows (C5), for example when a partition became free.
        """
        self._noticed |= {queue for queue, _, _ in counts}
        silent = {queue for queue, _ in self.ready} - self._noticed
        self._noticed |= silent
        return [(queue, int(Kind.NEWS), 0) for queue in sorted(silent)]

    def _count_phase(self, run: Run, number: int) -> None:
        phase = Phase.RETURNED if run.phase is Phase.FRESH else run.phase
        self._counts[run.queue, int(phase)] += number
        if run.life.partition is not None and run.phase in LIVE:
            self._partitions[run.queue, run.life.partition] += number

    def _note(self, run: Run) -> None:
        """Record that waiters of the queue must claim, now or earlier than they planned."""
        side = (run.queue, run.phase >= DEAD)
        if run.phase in _WAITING:
            self.ready.add(side)
        if run.phase in _TIMED and run.until is not None:
            self.next_due[side] = min(run.until, self.next_due.get(side, run.until))
        queue = self.tenant.numbered.get(run.queue)
        if queue is not None and queue.policy.ordering is Ordering.PARTITION and not side[1]:
            self.ready.add(side)
