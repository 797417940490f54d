"""Publish: decide what a batch means, refuse it whole or apply it whole (P2, S3).

Planning reads and never changes; applying never fails. Messages are planned in order, so
that a key or an id that occurs twice in a batch means what it would in two calls (P4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from zlib import crc32

from penstock.errors import QueueFull
from penstock.model.message import (
    NO_HEADERS,
    Message,
    MessageId,
    NewMessage,
    Offset,
    Published,
)
from penstock.model.queue import TopicPolicy
from penstock.storage.contract import Outgoing
from penstock.storage.keyvalue.dedup import FirstPublish
from penstock.storage.keyvalue.keys import claim_id_of, open_key, payload_key
from penstock.storage.keyvalue.metadata import encode_metadata
from penstock.storage.keyvalue.moves import assign, drop_waiting
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.tenant import Tenant

if TYPE_CHECKING:
    from penstock.storage.keyvalue.engine import Core

__all__ = ["Plan"]

#: What QueueFull tells a producer to wait: consumers need a moment, not a minute.
_RETRY_AFTER_MS: Final = 1000


class _Item:
    """One message that will be appended."""

    __slots__ = ("kept", "left", "message", "metadata", "new", "queues")

    def __init__(
        self, new: NewMessage, message: Message, metadata: bytes, queues: Sequence[Queue]
    ) -> None:
        self.new = new
        self.message = message
        self.metadata = metadata
        #: Where it becomes a delivery.
        self.queues = queues
        #: A replacement: where it is replaced in place, and what it leaves.
        self.kept: list[Queue] = []
        self.left: list[Queue] = []

    @property
    def replaces(self) -> bool:
        return self.message.id != self.message.offset


class Plan:
    """What one publish, or the publishes of one settle, will do."""

    def __init__(self, core: Core, tenant: Tenant, now: int) -> None:
        self._core = core
        self._tenant = tenant
        self._now = now
        self._items: list[_Item] = []
        self._replies: list[Published] = []
        self._ids: dict[tuple[str, str], FirstPublish] = {}
        self._keys: dict[tuple[str, str], _Item] = {}
        self._created: dict[str, Queue] = {}

    # -- planning ----------------------------------------------------------------------

    def add(self, outgoing: Outgoing) -> None:
        """Plan the messages of one topic."""
        topic, now, tenant = outgoing.topic, self._now, self._tenant
        policy = tenant.topic(topic)
        default_ttl = policy.default_ttl_ms
        offset = self._core.log.reserve(len(outgoing.messages), now)
        match = tenant.index.match
        append, reply = self._items.append, self._replies.append
        created = self._created.get(topic)
        for new in outgoing.messages:
            if new.id is not None and self._is_duplicate(topic, new.id, policy):
                continue
            payload = new.payload
            deliver_at = new.deliver_at
            expires_at = new.expires_at
            if expires_at is None and default_ttl is not None:
                expires_at = now + default_ttl
            message = Message(
                MessageId(offset),
                Offset(offset),
                topic,
                new.priority,
                now,
                now if deliver_at is None or deliver_at < now else deliver_at,
                expires_at,
                len(payload),
                crc32(payload),
                new.partition_key,
                new.key,
                new.content_type,
                # A copy: the producer may go on using its own.
                dict(new.headers) if new.headers else NO_HEADERS,
            )
            offset += 1
            if new.key is not None:
                item = self._plan_keyed(new, message, new.key)
            else:
                item = _Item(new, message, encode_metadata(message), match(message))
            message = item.message
            if not item.replaces:
                if created is not None:
                    item.queues = [*item.queues, created]
                elif not item.queues:
                    created = self._auto_create(message)
                    if created is not None:
                        item.queues = [created]
            append(item)
            reply(Published(message.id, message.offset, False, item.replaces))
            if new.id is not None and policy.dedup_window_ms:
                self._ids[topic, new.id] = FirstPublish(message.id, message.offset, now)

    def check_depth(self, settled: Queue | None = None, leaving: int = 0) -> None:
        """Refuse everything if a queue would pass its max_depth.

        ``leaving`` deliveries of the queue ``settled`` end in the same commit: they make room.
        """
        bounded: dict[Queue, int] = {}
        for item in self._items:
            for queue in item.queues:
                if queue.policy.max_depth is not None:
                    bounded[queue] = bounded.get(queue, 0) + 1
        for queue, added in bounded.items():
            limit = queue.policy.max_depth
            depth = queue.depth - (leaving if queue is settled else 0)
            if limit is not None and depth + added > limit:
                raise QueueFull(
                    f"Queue {queue.name!r} holds {depth} of at most {limit} deliveries.",
                    queue=queue.name,
                    limit=limit,
                    retry_after_ms=_RETRY_AFTER_MS,
                )

    def _is_duplicate(self, topic: str, idempotency_id: str, policy: TopicPolicy) -> bool:
        first = self._ids.get((topic, idempotency_id))
        if first is None:
            first = self._core.dedup.find(self._tenant.name, topic, idempotency_id)
            if first is None or first.at + policy.dedup_window_ms <= self._now:
                return False
        self._replies.append(
            Published(MessageId(first.message_id), Offset(first.offset), duplicate=True)
        )
        return True

    def _plan_keyed(self, new: NewMessage, message: Message, key: str) -> _Item:
        matching = self._tenant.index.match(message)
        planned = self._keys.get((message.topic, key))
        if planned is not None:
            before = [*planned.kept, *planned.queues]
            first = planned.message
        else:
            found = self._open(message.topic, key)
            if found is None:
                item = _Item(new, message, encode_metadata(message), matching)
                self._keys[message.topic, key] = item
                return item
            before, first = found
        replacement = Message(
            first.id,
            message.offset,
            message.topic,
            first.priority,
            first.published_at,
            first.deliver_at,
            message.expires_at,
            message.size,
            message.checksum,
            first.partition_key,
            key,
            message.content_type,
            message.headers,
        )
        created = self._created.get(message.topic)
        matching = self._tenant.index.match(replacement)
        if created is not None:
            matching = [*matching, created]
        joined = [queue for queue in matching if queue not in before]
        item = _Item(new, replacement, encode_metadata(replacement), joined)
        item.kept = [queue for queue in before if queue in matching]
        item.left = [queue for queue in before if queue not in matching]
        if item.kept or item.queues:
            self._keys[message.topic, key] = item
        else:
            self._keys.pop((message.topic, key), None)
        return item

    def _open(self, topic: str, key: str) -> tuple[list[Queue], Message] | None:
        """Where the key's message waits unclaimed, and the message; None if it is closed."""
        value = self._core.stage.get(open_key(self._tenant.name, topic, key))
        if value is None:
            return None
        record = OpenKey.decode(value)
        queues = [
            queue
            for name in record.queues
            if (queue := self._tenant.queues.get(name)) is not None
            and _waits(queue, record.priority, record.message_id)
        ]
        found = self._core.log.find(self._tenant.name, record.message_id)
        if not queues or found is None:
            return None
        return queues, found[0]

    def _auto_create(self, message: Message) -> Queue | None:
        topic = message.topic
        if not self._core.options.auto_create or topic in self._tenant.queues:
            return None
        if any(
            queue.cursor is not None and queue.filter.matches(message)
            for queue in self._tenant.queues.values()
        ):
            return None  # A queue that is catching up will have it.
        queue = self._core.new_queue(self._tenant.name, topic, self._now)
        self._created[topic] = queue
        return queue

    # -- applying ----------------------------------------------------------------------

    def apply(self) -> tuple[Published, ...]:
        """Append, route and remember; nothing here can be refused."""
        for queue in self._created.values():
            self._core.register(queue)
        writes = self._core.stage.writes
        append, log, now = self._core.log.append, self._tenant.log, self._now
        for item in self._items:
            message = item.message
            writes[payload_key(message.offset)] = item.new.payload
            append(log, message, item.metadata)
            if item.replaces:
                self._replace(item)
            for queue in item.queues:
                assign(queue, message, item.metadata, now)
            if item.new.key is not None:
                self._open_again(item, item.new.key)
        for (topic, idempotency_id), first in self._ids.items():
            window_ms = self._tenant.topic(topic).dedup_window_ms
            self._core.dedup.remember(self._tenant.name, topic, idempotency_id, first, window_ms)
        return tuple(self._replies)

    def _replace(self, item: _Item) -> None:
        message = item.message
        self._core.log.replaced(message.id, message.offset)
        for queue in item.left:
            claim_id = claim_id_of(queue.policy.bucket_size, message.priority, message.id)
            due_at = queue.due_of(claim_id)
            if due_at is None:
                entry = queue.take_available(claim_id)
            else:
                delayed = queue.find_delayed(claim_id)
                assert delayed is not None
                entry = delayed[1]
                queue.take_delayed(due_at, claim_id)
            drop_waiting(queue, entry)
        for queue in item.kept:
            queue.replace_waiting(message, item.metadata)

    def _open_again(self, item: _Item, key: str) -> None:
        names = tuple(sorted(queue.name for queue in (*item.kept, *item.queues)))
        record = open_key(self._tenant.name, item.message.topic, key)
        if not names:
            self._core.stage.delete(record)
            return
        value = OpenKey(item.message.id, item.message.priority, names).encode()
        self._core.stage.put(record, value)


def _waits(queue: Queue, priority: int, message_id: int) -> bool:
    claim_id = claim_id_of(queue.policy.bucket_size, priority, message_id)
    return queue.due_of(claim_id) is not None or queue.shelf.find(claim_id) is not None
