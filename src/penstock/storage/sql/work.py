"""Work: one transaction: the groups it holds, what it writes, and the queues to notify.

Groups are read under lock, changed here, and written together (S3). With ``single_statement`` they
are read without locks, and the database checks that they are unchanged when it writes. Deliveries
that reach the same state are grouped: a settle that acks forty of a group makes one group of them.
No notification is sent before the commit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.model.dead_letter_copies import copies
from penstock.model.decisions import expiry_in_queue
from penstock.model.message import Message
from penstock.model.queue import Ordering
from penstock.model.states import State, Transition
from penstock.storage.copy_limit import CopyLimit
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.database import (
    Count,
    FirstGroups,
    NeedsTransaction,
    NewSegment,
    PartitionCount,
    RetryTransaction,
    Row,
    Session,
)
from penstock.storage.sql.deliveries import (
    DEAD,
    INDEX_BITS,
    LIVE,
    DeliveryGroup,
    DeliveryRecord,
    Kind,
    Phase,
    PrimaryKey,
    message_id,
    numbered,
    segment_of,
)
from penstock.storage.sql.deliveries import Row as GroupRow
from penstock.storage.sql.front import Front
from penstock.storage.sql.segments import MAX_SEGMENT_BYTES, Segment

__all__ = ["EndedGroup", "Work"]

_WAITING: Final = frozenset(
    {Phase.FRESH, Phase.RETURNED, Phase.DELAYED, Phase.DEAD_RETURNED, Phase.DEAD_DELAYED}
)
_TIMED: Final = frozenset(
    {Phase.DELAYED, Phase.IN_FLIGHT, Phase.DEAD_DELAYED, Phase.DEAD_IN_FLIGHT}
)


class EndedGroup(NamedTuple):
    """Deliveries that ended, to be copied to a dead-letter topic or reported as events."""

    queue: Queue
    segment: int
    members: Sequence[int]
    record: DeliveryRecord
    state: State
    transition: Transition
    at: int
    is_kept: bool = True

    @property
    def offsets(self) -> list[int]:
        """The entries of their messages: a keyed replacement is elsewhere than its delivery."""
        entry = self.record.entry
        return [entry or message_id(self.segment, index) for index in self.members]


class _Held:
    """A group under lock: its original row, and the members left in it."""

    __slots__ = ("group", "key", "left", "row", "size")

    def __init__(self, group: DeliveryGroup, key: PrimaryKey, row: Row) -> None:
        self.group = group
        self.row = row
        self.key = key
        self.size = len(group.members)
        self.left = group.members
        """Members that were not moved."""


class Work:
    """The changes of one transaction in one tenant."""

    def __init__(
        self, session: Session, tenant: Tenant, now: int, *, single_statement: bool = False
    ) -> None:
        self.session = session
        #: Whether to write everything in one statement, if that is possible.
        self.single_statement = single_statement
        self.tenant = tenant
        self.now = now
        #: What a claim assumes about the groups that it did not read. The write checks it.
        self.first: FirstGroups | None = None
        #: The front of the queue, if the claim has read it.
        self.front: Front | None = None
        self._held: dict[int, _Held] = {}
        """By the identity of the group object."""
        self._added: dict[tuple[int, Phase, int, int, DeliveryRecord], list[int]] = {}
        self._counts: Counter[tuple[int, int]] = Counter()
        #: By queue and partition, the change of the number of unsettled deliveries.
        self._partitions: Counter[tuple[int, str]] = Counter()
        #: Queue number and side (true for the dead letters) of claims that may return more (C5).
        self.ready: set[tuple[int, bool]] = set()
        #: Queues with a tally row from this transaction, which other servers notice.
        self.counted: set[int] = set()
        self.lapsed: Counter[tuple[int, bool]] = Counter()
        #: Queues with deliveries that ended or were removed: callers may wait for their results.
        self.ended: set[int] = set()
        #: Deliveries whose dead-letter copies and events ``Core.transact`` appends.
        self.to_copy: list[EndedGroup] = []
        #: How much that is. Copies count by the segments that ``measured`` has.
        self.copies = CopyLimit()
        self.measured: dict[int, Segment] = {}
        #: By side, the earliest time at which something is due, as the database answered.
        self.asked_due: dict[tuple[int, bool], int | None] = {}
        #: The earliest time at which a written group of the queue is due or lapses.
        self.next_due: dict[tuple[int, bool], int] = {}
        #: Partitions of ordered queues that a delivery has left.
        self._left_partitions: dict[int, set[str]] = {}
        self._closed_keys: set[int] = set()
        #: By queue and message, where a delivery goes that is sent to the back.
        self.positions: dict[tuple[int, int], int] = {}
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
        #: Written groups, and the keys of deleted ones.
        self.put: list[GroupRow] = []
        self.gone: list[PrimaryKey] = []

    # -- groups ------------------------------------------------------------------------

    def hold(self, row: Row) -> DeliveryGroup:
        """Register a group that was read under lock."""
        group = DeliveryGroup.read(row)
        assert group.row_key is not None
        self._held[id(group)] = _Held(
            group, (group.queue, int(group.phase), group.rank, group.row_key), row
        )
        return group

    def hold_all(self, rows: Iterable[Row]) -> list[DeliveryGroup]:
        """Register groups that were read under lock."""
        return [self.hold(row) for row in rows]

    def hold_new(self, rows: Iterable[Row]) -> list[DeliveryGroup]:
        """Register groups that were read under lock, except those already held."""
        held = {known.key for known in self._held.values()}
        return [self.hold(row) for row in rows if tuple(row[:4]) not in held]

    async def lock_groups(
        self, queue: int, phase: Phase, row_keys: Iterable[tuple[int, int]]
    ) -> list[DeliveryGroup]:
        """Lock and register the groups of a phase at these ranks and row keys; some may be gone."""
        by_rank: defaultdict[int, set[int]] = defaultdict(set)
        for rank, row_key in row_keys:
            by_rank[rank].add(row_key)
        groups: list[DeliveryGroup] = []
        for rank, wanted in sorted(by_rank.items()):
            rows = await self.session.fetch(
                "lock_groups", queue=queue, phase=int(phase), rank=rank, row_keys=sorted(wanted)
            )
            groups += self.hold_all(rows)
        return groups

    def let_go(self, groups: Iterable[DeliveryGroup]) -> None:
        """Drop groups that are not needed after all, or will be read again."""
        for group in groups:
            del self._held[id(group)]

    def undo(self) -> None:
        """Discard all changes that were not written."""
        self._clear()
        self.ready.clear()
        self.lapsed.clear()
        self.ended.clear()
        self.to_copy.clear()

    def left(self, group: DeliveryGroup) -> Sequence[int]:
        """The members of a held group that were not moved or dropped yet."""
        return self._held[id(group)].left

    def add(
        self,
        queue: int,
        phase: Phase,
        rank: int,
        segment: int,
        members: Iterable[int],
        record: DeliveryRecord,
    ) -> None:
        """Add new deliveries."""
        self._added.setdefault((queue, phase, rank, segment, record), []).extend(members)

    def add_message(
        self,
        queue: Queue,
        message: Message,
        expires_at: int | None,
        max_attempts: int | None,
        entry: int | None,
    ) -> None:
        """Add a delivery of a message that is in the log already; ``entry`` replaces its first."""
        delayed = message.deliver_at > self.now
        record = DeliveryRecord(
            joined_at=self.now,
            expires_at=expiry_in_queue(queue.policy, expires_at, self.now),
            max_attempts=max_attempts,
            due_at=message.deliver_at if delayed else None,
            entry=entry,
            keyed=message.key is not None,
            partition=(message.partition_key or "") if queue.ordered else None,
        )
        segment, index = segment_of(message.id)
        phase = Phase.DELAYED if delayed else Phase.RETURNED
        self.add(queue.number, phase, 9 - message.priority, segment, [index], record)

    def append(self, segments: Sequence[NewSegment]) -> list[int]:
        """Append segments with the next write; returns placeholders for their numbers."""
        self._segments = list(segments)
        return [-ordinal for ordinal in range(1, len(segments) + 1)]

    async def append_now(self, segments: Sequence[NewSegment]) -> list[int]:
        """Append segments immediately; returns their numbers."""
        numbers = await self.session.append(segments)
        self.records += len(numbers)
        return numbers

    async def draw_positions(self, queue: int, messages: Sequence[int]) -> None:
        """Draw positions behind all messages so far, for these deliveries in this order.

        They are in segments that are assigned here and never have a message.
        """
        if self.single_statement:
            raise NeedsTransaction
        count = -(-len(messages) >> INDEX_BITS)
        empty: NewSegment = (self.tenant.number, self.now, 0, b"", b"")
        segments = await self.session.append([empty] * count)
        await self.session.run("remove_drawn", segments=segments)
        positions = (message_id(number, i) for number in segments for i in range(1 << INDEX_BITS))
        self.positions |= {(queue, message): next(positions) for message in messages}

    def drop(self, group: DeliveryGroup, members: Iterable[int]) -> None:
        """Remove some deliveries of a held group."""
        self._take(group, members)
        self._leave_partition(group)

    def move(
        self, group: DeliveryGroup, members: Sequence[int], phase: Phase, record: DeliveryRecord
    ) -> None:
        """Move some deliveries of a held group to another phase or record."""
        self._take(group, members)
        if phase not in LIVE:
            self._leave_partition(group)
        self.add(group.queue, phase, group.rank, group.segment, members, record)

    def _take(self, group: DeliveryGroup, members: Iterable[int]) -> None:
        held = self._held[id(group)]
        gone = members if isinstance(members, list | range) else list(members)
        before = held.left
        if list(before[: len(gone)]) == list(gone):
            # Claims take the first of many: do not iterate over the rest.
            held.left = before[len(gone) :]
        else:
            dropped = set(gone)
            held.left = [index for index in before if index not in dropped]
        assert len(held.left) == len(before) - len(gone), "a delivery is moved once"

    def _leave_partition(self, group: DeliveryGroup) -> None:
        """Note that the partition may be empty, in which case it loses its owner."""
        if group.record.partition is not None and group.phase in LIVE:
            self._left_partitions.setdefault(group.queue, set()).add(group.record.partition)

    def copy(self, ended: EndedGroup) -> None:
        """Note deliveries to be copied to a dead-letter topic, which needs a transaction."""
        if self.single_statement:
            raise NeedsTransaction
        self.to_copy.append(ended)
        self.copies.add(self._copied_bytes(ended), len(ended.members))

    def _copied_bytes(self, ended: EndedGroup) -> int:
        """The size of the copies, from above if a segment was not measured."""
        if not copies(ended.queue.policy, ended.state):
            return 0
        size = 0
        for number, index in map(segment_of, ended.offsets):
            segment = self.measured.get(number)
            if segment is None or index >= len(segment.metadata):
                return MAX_SEGMENT_BYTES
            size += segment.metadata[index].total_bytes
        return size

    def close_keys(self, group: DeliveryGroup, members: Iterable[int]) -> None:
        """Close the keys of these messages: the next publish is a new message."""
        self._closed_keys.update(message_id(group.segment, index) for index in members)

    # -- counters and notifications ----------------------------------------------------

    def count(self, queue: int, kind: Kind, number: int = 1) -> None:
        """Count something that does not follow from the phases."""
        self._counts[queue, int(kind)] += number

    def notify(self, queue: Queue, *, dead: bool = False) -> None:
        """Notify after the commit that a claim of the queue may return more."""
        self.ready.add((queue.number, dead))

    # -- writing -----------------------------------------------------------------------

    async def write(self) -> int:
        """Write all changes so far; returns the version of the tenant's catalog.

        The groups are no longer held afterwards, but stay locked in the database: a verb that
        first moves what is due writes that, and then reads the groups again.
        """
        gone, changed, rows = self._changed_rows()
        # A group that keeps its key, because its deadline moved as a whole, is replaced. No other
        # row is: an existing one belongs to another transaction.
        locked = {(row[0], row[1], row[2], row[3]) for row in changed}
        replaced = [row for row in rows if row[:4] in locked]
        inserted = [row for row in rows if row[:4] not in locked] if replaced else rows
        kept = {row[:4] for row in replaced}
        if len(kept) < len(replaced):
            raise RetryTransaction("two rows have one key")
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
            self.tenant.version if self.single_statement and not more else None,
            replaced,
            self.first,
        )
        self._version = version
        self.put += [numbered(row, self.numbers) for row in rows] if self._segments else rows
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

    def _changed_rows(self) -> tuple[list[PrimaryKey], list[Row], list[GroupRow]]:
        """The keys that are removed, the held rows that change, and the rows to write."""
        gone: list[PrimaryKey] = []
        changed: list[Row] = []
        rows: list[GroupRow] = []
        for held in self._held.values():
            left = held.left
            if len(left) == held.size:
                continue
            changed.append(held.row)
            group = held.group
            self._count_phase(group, len(left) - held.size)
            if not left:
                gone.append(held.key)
                continue
            rest = DeliveryGroup(
                group.queue, group.phase, group.rank, group.segment, left, group.record
            )
            if rest.key() != held.key:
                gone.append(held.key)
            rows.append(rest.row())
        for (queue, phase, rank, segment, record), members in self._added.items():
            group = DeliveryGroup(queue, phase, rank, segment, sorted(members), record)
            self._count_phase(group, len(members))
            self._note(group)
            rows.append(group.row())
        return gone, changed, rows

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
        self.counted |= {queue for queue, _, _ in counts}
        silent = {queue for queue, _ in self.ready} - self.counted
        self.counted |= silent
        return [(queue, int(Kind.NEWS), 0) for queue in sorted(silent)]

    def _count_phase(self, group: DeliveryGroup, number: int) -> None:
        phase = Phase.RETURNED if group.phase is Phase.FRESH else group.phase
        self._counts[group.queue, int(phase)] += number
        if group.record.partition is not None and group.phase in LIVE:
            self._partitions[group.queue, group.record.partition] += number

    def _note(self, group: DeliveryGroup) -> None:
        """Record that waiters of the queue must claim, now or earlier than they planned."""
        side = (group.queue, group.phase >= DEAD)
        if group.phase in _WAITING:
            self.ready.add(side)
        if group.phase in _TIMED and group.until is not None:
            self.next_due[side] = min(group.until, self.next_due.get(side, group.until))
        queue = self.tenant.numbered.get(group.queue)
        if queue is not None and queue.policy.ordering is Ordering.PARTITION and not side[1]:
            self.ready.add(side)
