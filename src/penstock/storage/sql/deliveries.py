"""Rows of deliveries: their phases, counters, records and keys.

Deliveries of one queue and one log segment with identical state and history share one row. A
publish of a hundred messages to one queue is one row there, not a hundred. A claim that takes
them all moves one row, and so does the settle that ends it. Deliveries that diverge are split
off: forty of a hundred that are acked get their own row, and sixty stay. Rows are never merged
again; in the worst case each holds one delivery, like the rows of other queues. Everything that is
stored about a delivery is stored about its whole row (S3).
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum
from penstock.model.limits import MAX_EVENT_ERROR_CHARS, MAX_HISTORY_EVENTS
from penstock.model.message import Message, MessageId
from penstock.model.states import State, Transition

__all__ = [
    "DEAD",
    "INDEX_BITS",
    "LIVE",
    "DeliveryGroup",
    "DeliveryRecord",
    "InFlightRows",
    "Kind",
    "Mark",
    "Phase",
    "PrimaryKey",
    "Row",
    "delivered",
    "in_order",
    "is_dead",
    "message_id",
    "numbered",
    "pack_members",
    "phases_of",
    "seal",
    "segment_of",
    "state_of",
    "unseal",
]

# -- checksums -------------------------------------------------------------------------
# The database protects its pages. A checksum in front of Penstock's binary values detects every
# other change, such as a manual UPDATE, before the value is used (X1).

_SEAL_BYTES: Final = 4


def seal(data: bytes) -> bytes:
    """The data, preceded by its checksum."""
    return checksum(data).to_bytes(_SEAL_BYTES, "little") + data


def unseal(data: bytes, what: str) -> bytes:
    """The sealed data; raises ``StoreCorrupt``, naming ``what``, if the checksum is wrong."""
    content = data[_SEAL_BYTES:]
    if int.from_bytes(data[:_SEAL_BYTES], "little") != checksum(content):
        raise StoreCorrupt(f"The checksum of {what} is wrong.")
    return content


# -- phases --------------------------------------------------------------------------
# A phase is a state and a side: the queue's own, or its dead letters' (D1), which are ten higher.
# Available deliveries are in two phases. *Fresh* ones were added by a publish and never handed out:
# new ones only appear at the end, so a claim need not search before the first of them (see
# ``raise_floors``). *Returned* ones came back from a claim, a delay or a replay, anywhere in the
# order.

#: The difference between a phase of the dead letters and the queue's own.
DEAD: Final = 10


class Phase(IntEnum):
    """The phases. ``DEAD_RETURNED`` holds failed deliveries, which ``Q.dlq`` hands out."""

    FRESH = 0
    RETURNED = 1
    DELAYED = 2
    IN_FLIGHT = 3
    DONE = 4
    EXPIRED = 5
    DEAD_RETURNED = 11
    DEAD_DELAYED = 12
    DEAD_IN_FLIGHT = 13
    DEAD_DONE = 14


#: The phases of unsettled deliveries.
LIVE: Final = (Phase.FRESH, Phase.RETURNED, Phase.DELAYED, Phase.IN_FLIGHT)

_STATES: Final = {
    Phase.FRESH: State.AVAILABLE,
    Phase.RETURNED: State.AVAILABLE,
    Phase.DELAYED: State.DELAYED,
    Phase.IN_FLIGHT: State.IN_FLIGHT,
    Phase.DONE: State.DONE,
    Phase.EXPIRED: State.EXPIRED,
    Phase.DEAD_RETURNED: State.AVAILABLE,
    Phase.DEAD_DELAYED: State.DELAYED,
    Phase.DEAD_IN_FLIGHT: State.IN_FLIGHT,
    Phase.DEAD_DONE: State.DONE,
}


def is_dead(phase: Phase) -> bool:
    """Whether the phase belongs to the dead letters."""
    return phase >= DEAD


def state_of(phase: Phase) -> State:
    """The state as seen from that side: a failed delivery is available in ``Q.dlq``."""
    return _STATES[phase]


def phases_of(state: State, *, dead: bool) -> tuple[Phase, ...]:
    """The phases of deliveries in ``state``; failed ones of a queue are its dead letters."""
    if state is State.FAILED:
        return () if dead else (Phase.DEAD_RETURNED,)
    return tuple(p for p, s in _STATES.items() if s is state and is_dead(p) is dead)


# -- counters ------------------------------------------------------------------------
# Every transaction inserts its changes of counters as its own rows, so that no transaction waits
# for a counter that another holds (Q2). Stats sums them up, and ``compaction`` merges them. Counts
# by phase follow from the rows that a transaction deletes and writes, so they are correct whenever
# those are.


class Kind(IntEnum):
    """What is counted. Phases are counted under their own numbers, which are below these."""

    NEWS = 99
    """No counter: a row that only notifies pollers."""
    GRANTS = 100
    ACKS = 101
    NACKS = 102
    FAILURES = 103
    DEAD_GRANTS = 110
    DEAD_ACKS = 111
    DEAD_NACKS = 112
    DEAD_FAILURES = 113

    @classmethod
    def of(cls, kind: Kind, *, dead: bool) -> Kind:
        """The kind, or its counterpart for the dead letters."""
        return cls(kind + DEAD) if dead else kind


# -- rows ----------------------------------------------------------------------------

#: An offset is the number of its segment followed by its index there, in this many bits.
INDEX_BITS: Final = 14
_INDEX_MASK: Final = (1 << INDEX_BITS) - 1

_TRANSITIONS: Final = tuple(Transition)
_ALL_STATES: Final = tuple(State)


def message_id(segment: int, index: int) -> MessageId:
    """The message id, or the offset of the entry, at an index of a segment."""
    return MessageId(segment << INDEX_BITS | index)


def segment_of(offset: int) -> tuple[int, int]:
    """The segment and the index of an offset or a message id."""
    return offset >> INDEX_BITS, offset & _INDEX_MASK


class Mark(Struct, frozen=True, array_like=True, gc=False):
    """One transition in a history: numbers encode the names of transition and state."""

    at: int
    kind: int
    after: int
    dead: bool = False
    consumer: str | None = None
    error: str | None = None

    @classmethod
    def of(
        cls,
        at: int,
        transition: Transition,
        state: State,
        *,
        dead: bool,
        consumer: str | None = None,
        error: str | None = None,
    ) -> Mark:
        """The mark of a transition into ``state``."""
        cut = None if error is None else error[:MAX_EVENT_ERROR_CHARS]
        return cls(
            at, _TRANSITIONS.index(transition), _ALL_STATES.index(state), dead, consumer, cut
        )

    @property
    def transition(self) -> Transition:
        """The transition."""
        return _TRANSITIONS[self.kind]

    @property
    def state(self) -> State:
        """The state after the transition."""
        return _ALL_STATES[self.after]


class DeliveryRecord(Struct, frozen=True, array_like=True):
    """The shared state and history of a group's members, apart from its key and its columns."""

    joined_at: int
    """When they were routed to the queue, or replayed into it from the log."""
    expires_at: int | None = None
    due_at: int | None = None
    """When a delayed delivery is due."""
    attempts: int = 0
    released: int = 0
    lease: int = 0
    """The number of the claim; after its end, of the last claim (C1)."""
    claimed_at: int | None = None
    consumer: str | None = None
    """Of the claim; None after its end."""
    at: int | None = None
    """When they became done, failed or expired."""
    error: str | None = None
    result: bytes | None = None
    marks: tuple[Mark, ...] = ()
    """Every transition but the first, oldest first."""
    entry: int | None = None
    """The offset of the newest entry, where a keyed message was replaced."""
    keyed: bool = False
    """Whether the message has a key; such a group has one member."""
    partition: str | None = None
    """The partition key, in an ordered queue."""
    deadline: int | None = None
    """Of the claim."""
    row_key: int = 0
    """The row key of a group in flight: the number of its claim, or a new one if only some of the
    claim's deliveries were extended."""
    max_attempts: int | None = None
    """The message's own limit, which overrides the queue's."""
    position: int | None = None
    """Where a waiting delivery is that was sent to the back; such a group has one member."""

    def marked(self, mark: Mark) -> tuple[Mark, ...]:
        """The history with one more mark, cut to its maximum length."""
        return (*self.marks, mark)[-MAX_HISTORY_EVENTS:]

    def pack(self) -> bytes:
        """The record in its stored form."""
        return seal(_encode_record(self))


def delivered(message: Message, record: DeliveryRecord) -> Message:
    """The message as its delivery has it: it may expire earlier in this queue."""
    if message.expires_at == record.expires_at:
        return message
    return replace(message, expires_at=record.expires_at)


_encode_record = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(DeliveryRecord).decode

#: The primary key of a row: queue, phase, rank, row key.
PrimaryKey: TypeAlias = tuple[int, int, int, int]


class Row(NamedTuple):
    """A group as stored in the database."""

    queue: int
    phase: int
    rank: int
    row_key: int
    """The claim number of a group in flight; otherwise the position of the first member."""
    segment: int
    size: int
    until: int | None
    """When the group is due, lapses or expires; after it was settled, when that was."""
    partition_key: bytes | None
    """In an ordered queue the partition, if the group is live. Of a delivery that was sent to the
    back, its message id: the index finds the lowest one."""
    consumer: str | None
    members: bytes | None
    record: bytes


def numbered(row: Row, numbers: Sequence[int]) -> Row:
    """The row with the number of its segment, if that is one of those just appended.

    Until then -1 stands for the first of them, -2 for the second and so on.
    """
    if row.segment >= 0:
        return row
    segment = numbers[-row.segment - 1]
    _, index = segment_of(row.row_key)
    return row._replace(segment=segment, row_key=message_id(segment, index))


class DeliveryGroup:
    """A group that was read, or will be written."""

    __slots__ = ("members", "phase", "queue", "rank", "record", "row_key", "segment")

    def __init__(
        self,
        queue: int,
        phase: Phase,
        rank: int,
        segment: int,
        members: Sequence[int],
        record: DeliveryRecord,
        row_key: int | None = None,
    ) -> None:
        self.queue = queue
        self.phase = phase
        self.rank = rank
        self.segment = segment
        #: Indices in the segment, in order.
        self.members = members
        self.record = record
        #: As stored in the database; None for a new group.
        self.row_key = row_key

    @classmethod
    def read(cls, row: Sequence[Any]) -> DeliveryGroup:
        """Decode a row, in the order of :class:`Row`."""
        queue, phase, rank, row_key, segment, size, _, _, _, members, record = row
        what = f"the deliveries of segment {segment}"
        try:
            decoded = _decode_record(unseal(record, what))
            return cls(queue, Phase(phase), rank, segment, _unpack(members, size), decoded, row_key)
        except (msgspec.MsgspecError, struct.error, ValueError) as error:
            raise StoreCorrupt(f"The record of {what} cannot be read.") from error

    @property
    def size(self) -> int:
        """The number of deliveries."""
        return len(self.members)

    @property
    def first(self) -> MessageId:
        """The first member."""
        return message_id(self.segment, self.members[0])

    @property
    def position(self) -> int:
        """The position of the first member, if the group waits or was settled."""
        return self.first if self.record.position is None else self.record.position

    @property
    def entry_segment(self) -> int:
        """Where its messages are: a replaced one is elsewhere than its delivery."""
        entry = self.record.entry
        return self.segment if entry is None else segment_of(entry)[0]

    def ids(self) -> list[MessageId]:
        """The message ids of the members, in order."""
        base = self.segment << INDEX_BITS
        return [MessageId(base | index) for index in self.members]

    @property
    def until(self) -> int | None:
        """When the group is next due, lapses or expires, or when it was settled."""
        record = self.record
        match self.phase:
            case Phase.FRESH | Phase.RETURNED:
                return record.expires_at
            case Phase.DELAYED:
                times = [t for t in (record.due_at, record.expires_at) if t is not None]
                return min(times, default=None)
            case Phase.DEAD_DELAYED:
                return record.due_at
            case Phase.IN_FLIGHT | Phase.DEAD_IN_FLIGHT:
                return record.deadline
            case _:
                return record.at

    def key(self) -> PrimaryKey:
        """Its primary key."""
        in_flight = self.phase in (Phase.IN_FLIGHT, Phase.DEAD_IN_FLIGHT)
        row_key = self.record.row_key if in_flight else self.position
        return self.queue, int(self.phase), self.rank, row_key

    def row(self) -> Row:
        """The group in its stored form."""
        record = self.record
        partition = record.partition if self.phase in LIVE else None
        key = None if partition is None else partition.encode()
        if record.position is not None:
            # Only unordered queues have such rows, so the column and its index are free.
            key = self.first.to_bytes(8, "big")
        return Row(
            *self.key(),
            self.segment,
            len(self.members),
            self.until,
            key,
            record.consumer,
            pack_members(self.members),
            record.pack(),
        )


def pack_members(members: Sequence[int]) -> bytes:
    """Indices as 16-bit numbers; only the first if they are consecutive."""
    first, last = members[0], members[-1]
    if last - first == len(members) - 1:
        return struct.pack("<H", first)
    return struct.pack(f"<{len(members)}H", *members)


def _unpack(data: bytes, size: int) -> Sequence[int]:
    if len(data) == 2:
        (first,) = struct.unpack("<H", data)
        return range(first, first + size)
    return struct.unpack(f"<{size}H", data)


def in_order(
    groups: Sequence[DeliveryGroup], most: int
) -> list[tuple[DeliveryGroup, Sequence[int]]]:
    """The deliveries of the groups in claim order, rank and then position, as stretches (C4).

    A stretch is consecutive members of one group. Groups of different segments or ranks do not
    overlap, so a group is mostly one stretch. Returns at least the first ``most`` deliveries.
    """
    if len(groups) == 1:
        return [(groups[0], groups[0].members)]
    found: list[tuple[DeliveryGroup, Sequence[int]]] = []
    ordered = sorted(groups, key=_stretch_of)
    for _, group in groupby(ordered, key=_stretch_of):
        alike = list(group)
        if len(alike) == 1:
            found.append((alike[0], alike[0].members))
            continue
        if alike[0].record.position is not None:
            # No message is in a segment that positions were drawn from.
            alike.sort(key=lambda moved: moved.position)
            found += [(moved, moved.members) for moved in alike]
            continue
        members = sorted(
            (index, nth) for nth, group in enumerate(alike) for index in group.members[:most]
        )
        for nth, stretch in groupby(members, key=lambda member: member[1]):
            found.append((alike[nth], [index for index, _ in stretch]))
    return found


def _stretch_of(group: DeliveryGroup) -> tuple[int, int]:
    """The rank, and the segment of the position: groups that share both may interleave."""
    return group.rank, group.position >> INDEX_BITS


# -- rows in flight that this server wrote -------------------------------------------
# Most deliveries are settled on the server that claimed them. The cached row may be outdated, for
# example if another server let a claim lapse. So the database compares the whole row when the
# settle writes (S1, S2); if it differs, the settle reads it under lock.

#: Cached groups; the oldest are evicted first.
_MOST: Final = 10_000
_IN_FLIGHT: Final = frozenset({int(Phase.IN_FLIGHT), int(Phase.DEAD_IN_FLIGHT)})


class InFlightRows:
    """Groups in flight by their primary keys."""

    def __init__(self) -> None:
        self._rows: OrderedDict[PrimaryKey, Row] = OrderedDict()

    def wrote(self, gone: Iterable[PrimaryKey], put: Iterable[Row]) -> None:
        """Record the rows that a commit deleted and wrote."""
        for row_key in gone:
            self._rows.pop(row_key, None)
        for row in put:
            if row.phase in _IN_FLIGHT:
                self._rows[row[:4]] = row
        while len(self._rows) > _MOST:
            self._rows.popitem(last=False)

    def find(self, row_key: PrimaryKey) -> Row | None:
        """The group as last written, if it is cached."""
        return self._rows.get(row_key)

    def clear(self) -> None:
        """Drop all entries."""
        self._rows.clear()
