"""The oracle's data: one log, one table of messages, and queues with their deliveries.

A delivery has one record (S3). ``dead`` says whether it is in the queue or in its dead-letter
queue: a ``failed`` delivery of Q is ``available`` and dead.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import UnknownMessage, UnknownQueue
from penstock.model.delivery import Event, Receipt, SettleReply
from penstock.model.limits import DLQ_SUFFIX, is_dead_letter
from penstock.model.message import Message, MessageId, Offset, Published
from penstock.model.queue import QueuePolicy, TopicPolicy
from penstock.model.states import LIVE, State

__all__ = [
    "Batch",
    "Ended",
    "Entry",
    "Held",
    "Id",
    "Owner",
    "PartitionId",
    "Queue",
    "Store",
    "Tally",
]


@dataclass(slots=True)
class Entry:
    """One entry of the log, as appended."""

    tenant: str
    message: Message
    payload: bytes


class Held(Struct):
    """One delivery. A struct: ``Queue.copy`` copies every one of them, before every verb."""

    message_id: MessageId
    state: State
    dead: bool = False
    attempts: int = 0
    released: int = 0
    """Grants since the last replay that were released and do not count."""
    due_at: int | None = None
    ttl_ends: int | None = None
    """When the queue's ``message_ttl_ms`` ends, counted from when it entered the queue."""
    at: int | None = None
    """When it became done, failed or expired."""
    receipt: Receipt | None = None
    """The receipt of the claim, or of the ack that ended it."""
    claimed_at: int | None = None
    lease_deadline: int | None = None
    consumer: str | None = None
    error: str | None = None
    result: bytes | None = None
    expires_at: int | None = None
    """Instead of the message's, if it was replayed with a new ttl."""
    position: int | None = None
    """Where it waits, if its queue sent it to the back; otherwise by its message id."""
    events: tuple[Event, ...] = ()

    @property
    def live(self) -> bool:
        """Whether it still has to be delivered by its queue or dead-letter queue."""
        return self.state in LIVE


class Ended(NamedTuple):
    """The last state of a delivery that has ended."""

    tenant: str
    queue: str
    topic: str
    """The queue's dead-letter topic, or the topic of events."""
    entry: Entry
    how: str
    """The state in which it ended."""
    by: str
    """The transition that ended it."""
    error: str | None
    attempts: int
    is_kept: bool = True
    """Whether the queue still has it."""


@dataclass(slots=True)
class Owner:
    """The owner of a partition, and its epoch."""

    consumer: str
    epoch: int


@dataclass(slots=True)
class Counters:
    """The counters in stats: one set for the queue, one for its dead-letter queue."""

    grants: int = 0
    acks: int = 0
    nacks: int = 0
    failures: int = 0
    lapses: int = 0
    """Not in stats: the listener is notified of them."""


@dataclass(slots=True)
class Queue:
    """One queue together with its dead-letter queue."""

    tenant: str
    name: str
    policy: QueuePolicy
    created_at: int
    cursor: Offset | None
    filter_version: int = 1
    dead_paused: bool = False
    deliveries: dict[MessageId, Held] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    dead_counters: Counters = field(default_factory=Counters)
    consumers: dict[str, int] = field(default_factory=dict)
    """Consumer to the deadline of its heartbeat."""
    owners: dict[str, Owner] = field(default_factory=dict)
    epoch: int = 0
    replayed: set[tuple[str, MessageId]] = field(default_factory=set)

    def held(self, *, dead: bool) -> list[Held]:
        """The deliveries of the queue, or of its dead-letter queue, in publish order."""
        return [d for _, d in sorted(self.deliveries.items()) if d.dead is dead]

    def shown_as(self, *, dead: bool) -> str:
        """The name of the queue or of its dead-letter queue."""
        return self.name + DLQ_SUFFIX if dead else self.name

    def counters_of(self, *, dead: bool) -> Counters:
        """The counters of the queue or of its dead-letter queue."""
        return self.dead_counters if dead else self.counters

    def copy(self) -> Queue:
        """A copy that shares only objects that are never changed in place."""
        twin = copy.copy(self)
        twin.deliveries = {i: copy.copy(d) for i, d in self.deliveries.items()}
        twin.counters = copy.copy(self.counters)
        twin.dead_counters = copy.copy(self.dead_counters)
        twin.consumers = dict(self.consumers)
        twin.owners = {p: copy.copy(o) for p, o in self.owners.items()}
        twin.replayed = set(self.replayed)
        return twin


#: (tenant, topic, idempotency id or key).
Id = tuple[str, str, str]
#: Tenant, topic, partition (None: any) and idempotency id.
PartitionId = tuple[str, str, str | None, str]


class Batch(NamedTuple):
    """A batch that has an id."""

    at: int
    own_ms: int | None
    """How long it is remembered; None: for the topic's dedup window."""
    published: tuple[Published, ...]

    def is_over(self, policy: TopicPolicy, now: int) -> bool:
        """Whether its window has ended."""
        window_ms = policy.dedup_window_ms if self.own_ms is None else self.own_ms
        return self.at + window_ms <= now


@dataclass(slots=True)
class Store:
    """Everything that the oracle stores."""

    log: list[Entry] = field(default_factory=list)
    next_offset: int = 0
    offset_step: int = 3
    """Offsets have gaps, so that a test that assumes dense offsets fails on the oracle."""
    appending_last: bool = False
    """Sweep the queues that append copies or events last, as the key-value engine does."""
    ends: dict[str, Offset] = field(default_factory=dict)
    trimmed: dict[str, Offset] = field(default_factory=dict)
    """Tenant to the offset after its last entry (``ends``), and after its last removed one."""
    messages: dict[tuple[str, MessageId], Entry] = field(default_factory=dict)
    """The newest entry of every message."""
    queues: dict[tuple[str, str], Queue] = field(default_factory=dict)
    topics: dict[tuple[str, str], TopicPolicy] = field(default_factory=dict)
    ids: dict[PartitionId, tuple[int, MessageId, Offset]] = field(default_factory=dict)
    """Idempotency id to time, message and entry (P4)."""
    batches: dict[Id, Batch] = field(default_factory=dict)
    """Batch id to the batch and its reply (P4)."""
    settles: dict[Id, tuple[int, SettleReply]] = field(default_factory=dict)
    """(tenant, queue, id) of a settle with publish to the time and the reply (P4)."""
    keys: dict[Id, MessageId] = field(default_factory=dict)
    """Open keys: no delivery of the message was claimed, purged or expired yet."""
    archived: dict[str, Offset] = field(default_factory=dict)
    documents: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """(kind, name) to value."""
    receipts: int = 0
    ended: list[Ended] = field(default_factory=list)
    """Deliveries that the current verb ended, to be copied to dead-letter topics."""

    def copy(self) -> Store:
        """A copy to restore when a verb is refused half way (P2, S3)."""
        twin = copy.copy(self)
        twin.log = list(self.log)
        twin.ends = dict(self.ends)
        twin.trimmed = dict(self.trimmed)
        twin.messages = dict(self.messages)
        twin.queues = {n: q.copy() for n, q in self.queues.items()}
        twin.topics = dict(self.topics)
        twin.ids = dict(self.ids)
        twin.batches = dict(self.batches)
        twin.settles = dict(self.settles)
        twin.keys = dict(self.keys)
        twin.archived = dict(self.archived)
        twin.documents = dict(self.documents)
        twin.ended = list(self.ended)
        return twin

    def find(self, tenant: str, name: str) -> tuple[Queue, bool]:
        """The queue, and whether ``name`` is its dead-letter queue."""
        dead = is_dead_letter(name)
        queue = self.queues.get((tenant, name.removesuffix(DLQ_SUFFIX) if dead else name))
        if queue is None:
            raise UnknownQueue(f"There is no queue {name!r}.", field="queue")
        return queue, dead

    def queues_of(self, tenant: str) -> list[Queue]:
        """The tenant's queues by name."""
        return [q for (t, _), q in sorted(self.queues.items()) if t == tenant]

    def topics_of(self, tenant: str) -> dict[str, TopicPolicy]:
        """The tenant's registered topics."""
        return {name: policy for (owner, name), policy in self.topics.items() if owner == tenant}

    def entries_of(self, tenant: str) -> Iterator[Entry]:
        """The tenant's log, in order."""
        return (entry for entry in self.log if entry.tenant == tenant)

    def newest(self, tenant: str, message_id: MessageId) -> Entry:
        """The newest entry of a message."""
        try:
            return self.messages[(tenant, message_id)]
        except KeyError:
            raise UnknownMessage(f"There is no message {message_id}.", field="id") from None

    def message(self, queue: Queue, held: Held) -> Message:
        """The message of a delivery, which may expire earlier in this queue."""
        message = self.messages[(queue.tenant, held.message_id)].message
        if held.expires_at is None and held.ttl_ends is None:
            return message
        own = message.expires_at if held.expires_at is None else held.expires_at
        ends = [at for at in (own, held.ttl_ends) if at is not None]
        return replace(message, expires_at=min(ends, default=None))

    def place(self, queue: Queue, held: Held) -> tuple[int, int]:
        """The position of the delivery in claim order (C4)."""
        message = self.message(queue, held)
        return 9 - message.priority, message.id if held.position is None else held.position

    def draw_position(self) -> int:
        """A position behind all messages so far, and before all later ones."""
        self.next_offset += self.offset_step
        return self.next_offset - self.offset_step

    def partition(self, queue: Queue, held: Held) -> str:
        """The partition of a delivery; messages without a key share the one without a name."""
        return self.message(queue, held).partition_key or ""

    def partitions(self, queue: Queue) -> list[str]:
        """The partitions with live deliveries, by name."""
        return sorted({self.partition(queue, d) for d in queue.held(dead=False) if d.live})


@dataclass(slots=True)
class Tally:
    """Counts what a sweep does, and stops it at its limit."""

    limit: int | None = None
    due: int = 0
    lapsed: int = 0
    expired: int = 0
    removed: int = 0
    entries_removed: int = 0
    ids_forgotten: int = 0
    more: bool = False

    def may_go_on(self) -> bool:
        """Whether one more change is within the limit; if not, sets ``more``."""
        done = self.due + self.lapsed + self.expired + self.removed
        done += self.entries_removed + self.ids_forgotten
        if self.limit is not None and done >= self.limit:
            self.more = True
        return not self.more
