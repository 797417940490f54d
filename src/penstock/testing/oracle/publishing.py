"""Appending to the log, and routing what was appended.

Each message is checked in this order: is its idempotency id known (P4), is its key still open; if
neither, it is a new message. The callers undo everything when this raises.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.errors import Conflict, QueueFull, TooLarge, TooManyQueues
from penstock.filters import parse
from penstock.model.checksum import checksum
from penstock.model.delivery import RouteReply
from penstock.model.message import HeaderValue, Message, MessageId, NewMessage, Offset, Published
from penstock.model.queue import TopicPolicy, changed_policy
from penstock.model.states import State
from penstock.storage.contract import EngineOptions, Outgoing
from penstock.storage.topic_checks import CheckedBy, check_topics
from penstock.testing.oracle import transitions
from penstock.testing.oracle.state import Batch, Ended, Entry, Queue, Store

__all__ = [
    "RETRY_AFTER_MS",
    "append_copies",
    "assign",
    "check_copies",
    "publish",
    "publish_batch",
    "route",
]

#: The retry delay of a full queue.
RETRY_AFTER_MS = 1_000


def publish(
    store: Store, options: EngineOptions, now: int, tenant: str, batch: Sequence[Outgoing]
) -> tuple[Published, ...]:
    """Append the whole batch. Raises ``QueueFull`` afterwards, for the caller to undo."""
    batch_of = _Batch(store, options, now, tenant)
    depths = {q.name: _depth(q) for q in store.queues_of(tenant)}
    published = tuple(
        batch_of.publish(outgoing.topic, new) for outgoing in batch for new in outgoing.messages
    )
    for queue in store.queues_of(tenant):
        most, added = queue.policy.max_depth, batch_of.added[queue.name]
        if most is not None and added and depths.get(queue.name, 0) + added > most:
            raise QueueFull(
                f"Queue {queue.name!r} is at its max_depth of {most}.",
                queue=queue.name,
                limit=most,
                retry_after_ms=RETRY_AFTER_MS,
            )
    limit = options.limits.publish_deliveries
    if batch_of.made > limit and sum(len(outgoing.messages) for outgoing in batch) > 1:
        raise TooLarge("Too many deliveries.", field="messages", limit=limit)
    return published


def publish_batch(
    store: Store,
    options: EngineOptions,
    now: int,
    tenant: str,
    batch: Outgoing,
    batch_id: str | None,
    batch_ms: int | None,
    checked: CheckedBy,
) -> tuple[tuple[Published, ...], bool]:
    """Publish, unless the batch id is known inside its window: then return that reply (P4)."""
    if batch_id is None:
        check_topics(checked, store.topics_of(tenant))
        return publish(store, options, now, tenant, [batch]), False
    policy = store.topics.get((tenant, batch.topic), TopicPolicy())
    seen = store.batches.get((tenant, batch.topic, batch_id))
    if seen is not None and not seen.is_over(policy, now):
        return seen.published, True
    check_topics(checked, store.topics_of(tenant))
    published = publish(store, options, now, tenant, [batch])
    new = Batch(now, batch_ms, published)
    if not new.is_over(policy, now):
        store.batches[tenant, batch.topic, batch_id] = new
    return published, False


def append_copies(store: Store, options: EngineOptions, now: int) -> None:
    """Append the copies and events of ended deliveries to their topics, by message id."""
    ended, store.ended = store.ended, []
    for one in sorted(ended, key=lambda one: one.entry.message.id):
        message = one.entry.message
        if one.topic == "penstock.events":
            _Batch(store, options, now, one.tenant).publish(one.topic, _event(one, now))
            continue
        hops = _hops(message.headers)
        if hops >= 16:
            continue
        headers: dict[str, HeaderValue] = {
            "dead_letter_hops": hops + 1,
            "dead_letter_original_queue": one.queue,
            "dead_letter_original_topic": message.topic,
            "dead_letter_message_id": message.id,
            "dead_letter_state": one.how,
            "dead_letter_transition": one.by,
            "dead_letter_attempts": one.attempts,
            "dead_letter_at": now,
        }
        if one.error is not None:
            headers["dead_letter_error"] = one.error[:1024]
        if message.key is not None:
            headers["dead_letter_key"] = message.key
        copy = NewMessage(
            one.entry.payload,
            _add_original(headers, message.headers),
            partition_key=message.partition_key,
            priority=message.priority,
            content_type=message.content_type,
            auto_create=len(store.queues_of(one.tenant)) < options.limits.queues,
        )
        _Batch(store, options, now, one.tenant).publish(one.topic, copy)


def check_copies(store: Store) -> None:
    """Refuse a settle with publish whose copies have over 16 MiB, unless it is a single one."""
    messages = [one.entry.message for one in store.ended if one.topic != "penstock.events"]
    copied = [message for message in messages if _hops(message.headers) < 16]
    limit = 16 * 1024 * 1024
    size = sum(message.size + _size(message.headers) for message in copied)
    if len(copied) > 1 and size > limit:
        raise TooLarge("The copies are too large.", field="settlements", limit=limit)


def _hops(headers: Mapping[str, HeaderValue]) -> int:
    """How many copies led to a message."""
    hops = headers.get("dead_letter_hops")
    return max(hops, 0) if isinstance(hops, int) and not isinstance(hops, bool) else 0


def _event(one: Ended, now: int) -> NewMessage:
    """The report of an ended delivery."""
    name = f"message.{one.how}"
    headers: dict[str, HeaderValue] = {"event": name, "queue": one.queue}
    hops = _hops(one.entry.message.headers)
    if hops:
        headers["dead_letter_hops"] = hops
    body = {
        "event": name,
        "at": now,
        "queue": one.queue,
        "message_id": one.entry.message.id,
        "topic": one.entry.message.topic,
        "attempts": one.attempts,
    }
    if one.how in {"failed", "expired"}:
        body["error"] = one.error
    if one.how == "failed":
        body["dead_letter"] = headers["dead_letter"] = one.is_kept
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return NewMessage(text.encode(), headers, content_type="application/json", auto_create=False)


def _add_original(
    headers: dict[str, HeaderValue], original: Mapping[str, HeaderValue]
) -> dict[str, HeaderValue]:
    """Add the original headers, or by name as many as fit with a count of the others."""
    own = {*headers, *_OPTIONAL}
    wanted = {name: value for name, value in sorted(original.items()) if name not in own}
    if _is_valid(headers | wanted):
        return headers | wanted
    headers["dead_letter_dropped_headers"] = dropped = 0
    for name, value in wanted.items():
        if _is_valid({**headers, name: value}):
            headers[name] = value
        else:
            dropped += 1
    return {**headers, "dead_letter_dropped_headers": dropped}


#: Headers that only some copies have.
_OPTIONAL = ("dead_letter_error", "dead_letter_key", "dead_letter_dropped_headers")


def _is_valid(headers: Mapping[str, HeaderValue]) -> bool:
    """Whether a message may have these headers."""
    return len(headers) <= 64 and _size(headers) <= 16 * 1024


def _size(headers: Mapping[str, HeaderValue]) -> int:
    """The bytes of names and values; a value that is not text counts eight."""
    sizes = [len(v.encode()) if isinstance(v, str) else 8 for v in headers.values()]
    return sum(sizes) + sum(len(n.encode()) for n in headers)


def route(store: Store, queue: Queue, limit: int, now: int) -> RouteReply:
    """Catch up by at most ``limit`` entries."""
    if queue.cursor is None:
        return RouteReply(scanned=0, assigned=0, cursor=None)
    waiting = [e for e in store.entries_of(queue.tenant) if e.message.offset >= queue.cursor]
    assigned = sum(_route_one(store, queue, entry, now) for entry in waiting[:limit])
    scanned = len(waiting[:limit])
    queue.cursor = waiting[limit].message.offset if len(waiting) > limit else None
    return RouteReply(scanned=scanned, assigned=assigned, cursor=queue.cursor)


def assign(
    store: Store,
    queue: Queue,
    filter: str,
    start: Offset,
    end: Offset,
    offsets: Sequence[Offset],
    now: int,
) -> RouteReply:
    """Catch up over a range of the log, examining only these entries."""
    if queue.policy.filter != filter:
        raise Conflict("The filter of the queue has changed.", field="filter")
    if queue.cursor is None or queue.cursor >= end:
        return RouteReply(scanned=0, assigned=0, cursor=queue.cursor)
    if queue.cursor < start:
        raise Conflict("There is a gap between the cursor and the range.", field="start")
    if end > store.ends.get(queue.tenant, 0):
        raise Conflict("The range reaches beyond the log.", field="end")
    left = {offset for offset in offsets if offset >= queue.cursor}
    entries = [e for e in store.entries_of(queue.tenant) if e.message.offset in left]
    if len(entries) < len(left):
        raise Conflict("There is no such entry.", field="offsets")
    assigned = sum(_route_one(store, queue, entry, now) for entry in entries)
    queue.cursor = end
    return RouteReply(scanned=len(left), assigned=assigned, cursor=end)


def _route_one(store: Store, queue: Queue, entry: Entry, now: int) -> bool:
    """Add the current message of an entry, if the queue takes it and does not have it."""
    message = store.newest(queue.tenant, entry.message.id).message
    if message.id in queue.deliveries or not _takes(queue, message):
        return False
    transitions.add(queue, message, now)
    return True


@dataclass(slots=True)
class _Batch:
    store: Store
    options: EngineOptions
    now: int
    tenant: str
    added: Counter[str] = field(default_factory=Counter)
    """Deliveries added to each queue."""
    made: int = 0
    """Deliveries of all messages, new or replaced."""

    def publish(self, topic: str, new: NewMessage) -> Published:
        policy = self.store.topics.get((self.tenant, topic), TopicPolicy())
        if new.id is not None:
            seen = self.store.ids.get((self.tenant, topic, _scope(policy, new), new.id))
            if seen is not None and seen[0] + policy.dedup_window_ms > self.now:
                return Published(id=seen[1], offset=seen[2], duplicate=True)
        expires_at = new.expires_at
        if expires_at is None and policy.default_ttl_ms is not None:
            expires_at = self.now + policy.default_ttl_ms
        open_message = self._open_message(topic, new.key)
        if open_message is None:
            published = self._append_new(topic, new, expires_at)
        else:
            published = self._replace(open_message, new, expires_at)
        has = len(self._queues_with(published.id))
        published = replace(published, queues=has)
        self.made += has
        if new.id is not None and policy.dedup_window_ms > 0:
            seen_now = (self.now, published.id, published.offset)
            self.store.ids[(self.tenant, topic, _scope(policy, new), new.id)] = seen_now
        return published

    def _open_message(self, topic: str, key: str | None) -> Message | None:
        if key is None:
            return None
        message_id = self.store.keys.get((self.tenant, topic, key))
        if message_id is None:
            return None
        states = [q.deliveries[message_id].state for q in self._queues_with(message_id)]
        if not states or State.IN_FLIGHT in states:
            return None
        return self.store.newest(self.tenant, message_id).message

    def _queues_with(self, message_id: MessageId) -> list[Queue]:
        return [q for q in self.store.queues_of(self.tenant) if message_id in q.deliveries]

    def _append(self, message: Message, payload: bytes) -> Message:
        offset = Offset(self.store.next_offset)
        self.store.next_offset += self.store.offset_step
        self.store.ends[self.tenant] = Offset(offset + 1)
        if message.id < 0:
            message = replace(message, id=MessageId(offset))
        message = replace(message, offset=offset, size=len(payload), checksum=checksum(payload))
        entry = Entry(self.tenant, message, payload)
        self.store.log.append(entry)
        self.store.messages[(self.tenant, message.id)] = entry
        return message

    def _append_new(self, topic: str, new: NewMessage, expires_at: int | None) -> Published:
        message = Message(
            id=MessageId(-1),
            offset=Offset(-1),
            topic=topic,
            priority=new.priority,
            published_at=self.now,
            deliver_at=max(self.now, new.deliver_at or 0),
            expires_at=expires_at,
            size=0,
            checksum=0,
            partition_key=new.partition_key,
            key=new.key,
            content_type=new.content_type,
            headers=dict(new.headers),
            max_attempts=new.max_attempts,
        )
        message = self._append(message, new.payload)
        self._route_new(message, auto_create=new.auto_create)
        self._remember_key(message)
        return Published(id=message.id, offset=message.offset)

    def _replace(self, old: Message, new: NewMessage, expires_at: int | None) -> Published:
        changed = replace(
            old,
            headers=dict(new.headers),
            content_type=new.content_type,
            expires_at=expires_at,
            max_attempts=new.max_attempts,
        )
        message = self._append(changed, new.payload)
        for queue in self.store.queues_of(self.tenant):
            held = queue.deliveries.get(message.id)
            if held is None:
                # A queue that is catching up gets it from route.
                if queue.cursor is None and _takes(queue, message):
                    self._add(queue, message)
            elif not _takes(queue, message):
                transitions.remove(self.store, queue, held)
            else:
                held.ttl_ends = transitions.ttl_ends(queue, self.now)
                held.expires_at = None
        if new.auto_create and self._is_for_a_new_queue(message):
            self._add(self._create_queue(message.topic), message)
        self._remember_key(message)
        return Published(id=message.id, offset=message.offset, replaced=True)

    def _route_new(self, message: Message, *, auto_create: bool) -> None:
        if auto_create and self._is_for_a_new_queue(message):
            self._create_queue(message.topic)
        for queue in self.store.queues_of(self.tenant):
            if queue.cursor is None and _takes(queue, message):
                self._add(queue, message)

    def _is_for_a_new_queue(self, message: Message) -> bool:
        """Whether no queue, caught up or not, takes the message, and one may be created."""
        queues = self.store.queues_of(self.tenant)
        named = (self.tenant, message.topic)
        unwanted = not any(_takes(queue, message) for queue in queues)
        return unwanted and self.options.auto_create and named not in self.store.queues

    def _create_queue(self, topic: str) -> Queue:
        limit = self.options.limits.queues
        if len(self.store.queues_of(self.tenant)) >= limit:
            raise TooManyQueues("No queue for the topic.", limit=limit)
        demand = self.store.topics.get((self.tenant, topic), TopicPolicy())
        filtered = replace(self.options.default_policy, filter=f"topic = '{topic}'")
        given = {name: value for name, value in demand.queue_defaults.items() if value is not None}
        policy = changed_policy(filtered, given)
        queue = Queue(self.tenant, topic, policy, self.now, cursor=None)
        self.store.queues[self.tenant, topic] = queue
        return queue

    def _add(self, queue: Queue, message: Message) -> None:
        transitions.add(queue, message, self.now)
        self.added[queue.name] += 1

    def _remember_key(self, message: Message) -> None:
        """A key is open while its message waits in a queue; without a queue, it is closed."""
        if message.key is None:
            return
        key = (self.tenant, message.topic, message.key)
        if self._queues_with(message.id):
            self.store.keys[key] = message.id
        else:
            self.store.keys.pop(key, None)


def _scope(policy: TopicPolicy, new: NewMessage) -> str | None:
    """The partition in which the message's id is unique; None: the whole topic."""
    return None if policy.dedup_scope == "topic" else new.partition_key or ""


def _takes(queue: Queue, message: Message) -> bool:
    return parse(queue.policy.filter).matches(message)


def _depth(queue: Queue) -> int:
    return sum(d.live for d in queue.held(dead=False))
