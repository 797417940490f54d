"""Publish: plan a batch, then reject or apply it as a whole (P2, S3).

Planning reads and never changes; applying never fails. Messages are planned in order, so a key or
id that occurs twice in a batch has the same effect as in two calls (P4).

Both run in steps of some messages. ``LongChanges`` runs the steps, and excludes other verbs while
the event loop does other work between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from penstock.errors import QueueFull
from penstock.model.checksum import checksum
from penstock.model.message import (
    NO_HEADERS,
    HeaderValue,
    Message,
    MessageId,
    NewMessage,
    Offset,
    Published,
)
from penstock.model.queue import TopicPolicy
from penstock.storage.contract import Outgoing
from penstock.storage.dedup_scope import is_partitioned, stored_id
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.dedup import FirstPublish
from penstock.storage.keyvalue.keys import open_key, payload_key
from penstock.storage.keyvalue.long_changes import message_steps
from penstock.storage.keyvalue.metadata import encode_metadata, entering
from penstock.storage.keyvalue.moves import assign_many, drop_available, drop_delayed
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import Logged
from penstock.storage.keyvalue.routed_ahead import RoutedAhead
from penstock.storage.keyvalue.tenant import Tenant
from penstock.storage.keyvalue.waiting_keys import Replacement, WaitingKeys
from penstock.storage.quotas import check_fan_out, check_queue_quota
from penstock.storage.topic_checks import CheckedBy, check_topics

__all__ = ["Plan", "owned"]

#: The retry delay of QueueFull: consumers free space within a second rather than a minute.
_RETRY_AFTER_MS: Final = 1000


#: Queues that planning a whole step of keyed messages may visit for each: some milliseconds.
_QUEUES_A_STEP: Final = 100
#: Deliveries per step that are counted against ``max_depth``.
_COUNTED_A_STEP: Final = 2_000
#: An append: the message with its metadata, the queues that it joins, and what it replaces. A
#: tuple, because creating one object per message was a tenth of the cost of a publish.
_Item: TypeAlias = tuple[NewMessage, Logged, Sequence[Queue], Replacement | None]
_queues_of: Final = itemgetter(2)


class Plan:
    """What one publish, or the publish part of one settle, will do."""

    __slots__ = (
        "_ahead",
        "_batch",
        "_core",
        "_counted",
        "_created",
        "_deliveries",
        "_headers",
        "_ids",
        "_items",
        "_keys",
        "_now",
        "_position",
        "_replies",
        "_step",
        "_taken",
        "_tenant",
        "_waiting",
        "is_half_done",
        "is_repeated",
    )

    def __init__(self, core: Core, tenant: Tenant, now: int) -> None:
        self._core = core
        self._tenant = tenant
        self._now = now
        self._step = core.step_size
        #: Whether applying has begun: an error after that leaves the plan half done.
        self.is_half_done = False
        #: Whether the batch was stored before; the replies are then the original ones.
        self.is_repeated = False
        self._taken: Sequence[Outgoing] = ()
        #: Copied headers of all messages, if planning takes more than one step.
        self._headers: list[dict[str, HeaderValue]] | None = None
        self._items: list[_Item] = []
        #: What the messages become, as far as was counted: up to this item.
        self._deliveries = self._counted = 0
        self._replies: list[Published] = []
        self._ids: dict[tuple[str, str], FirstPublish] = {}
        #: Keys that this plan has decided on; None: the message is no longer in any queue.
        self._keys: dict[tuple[str, str], _Item | None] = {}
        self._waiting: WaitingKeys | None = None
        self._created: dict[str, Queue] = {}
        #: The topic, id and own window of the batch, if its id is to be remembered.
        self._batch: tuple[str, str, int | None] | None = None
        self._ahead: RoutedAhead | None = None
        #: The position of the current message among all that were routed ahead.
        self._position = -1

    # -- planning ----------------------------------------------------------------------

    def take(
        self,
        outgoing: Sequence[Outgoing],
        ahead: RoutedAhead | None = None,
        *,
        runs_now: bool = True,
    ) -> None:
        """Take over the messages; ``ahead`` has their routing if it was computed ahead.

        The producers may change their lists and headers between two steps. So everything is copied
        unless the whole batch is planned in the first step, and that step runs now (``runs_now``).
        """
        self._ahead = ahead
        self._taken = outgoing
        if runs_now and len(outgoing) == 1 and len(outgoing[0].messages) <= self._step:
            return
        self._taken = [Outgoing(item.topic, tuple(item.messages)) for item in outgoing]
        if ahead is None:
            self._headers = [_copied(new.headers) for item in outgoing for new in item.messages]

    def publish(
        self, topic: str, batch_id: str | None, batch_ms: int | None, checked: CheckedBy
    ) -> Iterator[None]:
        """Publish the messages that were taken over, or refuse them."""
        if batch_id is not None and self._is_repeated(topic, batch_id, batch_ms):
            self.is_repeated = True
            return
        check_topics(checked, self._tenant.topics)
        yield from self.decide()
        if self._tenant.bounded or self._created:
            yield from self.check_depth()
        yield from self.apply()

    def decide(self) -> Iterator[None]:
        """Plan the messages that were taken over, in steps."""
        step, queues = self._step, len(self._tenant.queues)
        many = queues > _QUEUES_A_STEP
        if many:
            step = max(1, step * _QUEUES_A_STEP // queues)
        # Reserved together: another reservation may begin the next segment of the log.
        count = sum([len(outgoing.messages) for outgoing in self._taken])
        offset = self._core.log.reserve(count, self._now)
        for outgoing in self._taken:
            topic, messages = outgoing.topic, outgoing.messages
            if many:
                yield from self.waiting_keys.find_ahead(outgoing, _QUEUES_A_STEP)
            if len(messages) <= step:
                offset = self._decide(topic, messages, offset)
                self._check_fan_out()
                continue
            for part in message_steps(messages, step):
                offset = self._decide(topic, part, offset)
                self._check_fan_out()
                yield
        self._core.log.return_unused(offset)

    def _check_fan_out(self) -> None:
        """Refuse more deliveries than one publish may make, before more messages are planned."""
        items, counted = self._items, self._counted
        limits = self._core.options.limits
        queues = len(self._tenant.queues) + len(self._created)
        if len(items) * queues <= limits.publish_deliveries:
            return  # Even if every message goes to every queue.
        self._counted = len(items)
        self._deliveries += sum(map(len, map(_queues_of, items[counted:])))
        if self._deliveries > limits.publish_deliveries:
            messages = sum(len(outgoing.messages) for outgoing in self._taken)
            check_fan_out(limits, messages, self._deliveries)

    def _decide(self, topic: str, messages: Sequence[NewMessage], first: int) -> int:
        """Plan messages of one topic. Returns the offset after the last one used."""
        now, tenant, ahead, headers = self._now, self._tenant, self._ahead, self._headers
        policy = tenant.topic(topic)
        default_ttl = policy.default_ttl_ms
        # Serves as id and as offset; converting to both types costs 0.1 µs per message.
        offset: Any = first
        match = tenant.index.match if ahead is None else self._match
        append, reply = self._items.append, self._replies.append
        created = self._created.get(topic)
        copied = ahead is not None or headers is not None
        for new in messages:
            if copied:
                self._position += 1
            stored = None if new.id is None else stored_id(policy, new.id, new.partition_key)
            if stored is not None and self._is_duplicate(topic, stored, policy):
                continue
            payload, deliver_at, expires_at = new.payload, new.deliver_at, new.expires_at
            if expires_at is None and default_ttl is not None:
                expires_at = now + default_ttl
            message = Message(
                offset,
                offset,
                topic,
                new.priority,
                now,
                now if deliver_at is None or deliver_at < now else deliver_at,
                expires_at,
                len(payload),
                checksum(payload),
                new.partition_key,
                new.key,
                new.content_type,
                # A copy: the producer may change its own.
                self._copied_headers() if copied else _copied(new.headers),
                new.max_attempts,
            )
            offset += 1
            replaced, count = False, 0
            if new.key is not None:
                item = self._plan_keyed(new, message, new.key)
                _, (message, _), queues, change = item
                if change is not None:
                    replaced, count = True, len(change.kept)
                created = self._created.get(topic)
            else:
                queues = match(message)
                if created is not None:
                    queues = (*queues, created)
                elif not queues and new.auto_create:
                    created = self._auto_create(message)
                    queues = () if created is None else (created,)
                item = (new, (message, encode_metadata(message)), queues, None)
            append(item)
            reply(Published(message.id, message.offset, False, replaced, count + len(queues)))
            if stored is not None and policy.dedup_window_ms:
                self._ids[topic, stored] = FirstPublish(message.id, message.offset, now)
        return int(offset)

    def _copied_headers(self) -> dict[str, HeaderValue]:
        """The headers of the current message, which were copied when it was taken over."""
        if self._headers is not None:
            return self._headers[self._position]
        assert self._ahead is not None
        return self._ahead.message(self._position).headers

    def _is_repeated(self, topic: str, batch_id: str, batch_ms: int | None) -> bool:
        """Whether the batch was stored before; if so, sets the original replies."""
        window_ms = self._tenant.topic(topic).dedup_window_ms
        dedup = self._core.dedup
        before = dedup.find_batch(self._tenant.name, topic, batch_id, self._now, window_ms)
        if before is not None:
            self._replies += before
            return True
        if window_ms or batch_ms:
            self._batch = (topic, batch_id, batch_ms)
        return False

    def check_depth(self, settled: Queue | None = None, leaving: int = 0) -> Iterator[None]:
        """Refuse the whole publish if a queue would exceed its max_depth.

        ``leaving`` deliveries of the queue ``settled`` end in the same commit and are deducted.
        """
        bounded: dict[Queue, int] = {}
        same: Sequence[Queue] = ()
        limited: list[Queue] = []
        counted = 0
        for _, _, queues, _ in self._items:
            if queues is not same:
                same = queues
                limited = [queue for queue in queues if queue.policy.max_depth is not None]
                counted += len(queues)
            if limited:
                for queue in limited:
                    bounded[queue] = bounded.get(queue, 0) + 1
                counted += len(limited)
            if counted > _COUNTED_A_STEP:
                counted = 0
                yield
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
            first = self._core.dedup.find(
                self._tenant.name, topic, idempotency_id, partitioned=is_partitioned(policy)
            )
            if first is None or first.at + policy.dedup_window_ms <= self._now:
                return False
        self._replies.append(
            Published(MessageId(first.message_id), Offset(first.offset), duplicate=True)
        )
        return True

    def _plan_keyed(self, new: NewMessage, message: Message, key: str) -> _Item:
        item: _Item
        planned = self._keys.get((message.topic, key))
        if planned is not None:
            _, (first, _), joined, earlier = planned
            before = [*earlier.kept, *joined] if earlier else list(joined)
        else:
            closed = (message.topic, key) in self._keys
            found = None if closed else self.waiting_keys.find(message.topic, key)
            if found is None:
                joining = self._match_all(message)
                if not joining and new.auto_create:
                    joining = self._created_for(message)
                item = (new, (message, encode_metadata(message)), joining, None)
                self._keys[message.topic, key] = item if joining else None
                return item
            before, first = found
        # The message keeps its position; the rest is new.
        message = replace(
            message,
            id=first.id,
            priority=first.priority,
            published_at=first.published_at,
            deliver_at=first.deliver_at,
            partition_key=first.partition_key,
        )
        matching = self._match_all(message)
        # Sets, because both may hold all queues of a tenant.
        taking, waiting = frozenset(matching), frozenset(before)
        # The index has only caught-up queues; the message may also be in a queue that is not.
        kept = [
            queue
            for queue in before
            if queue in taking or (queue.cursor is not None and queue.filter.matches(message))
        ]
        self._deliveries += len(kept)
        keeping = frozenset(kept)
        change = Replacement(kept, [queue for queue in before if queue not in keeping])
        joining = tuple(queue for queue in matching if queue not in waiting)
        if not kept and not joining and new.auto_create:
            joining = self._created_for(message)
        item = (new, (message, encode_metadata(message)), joining, change)
        self._keys[message.topic, key] = item if kept or joining else None
        return item

    @property
    def waiting_keys(self) -> WaitingKeys:
        """Finds the messages that new messages with their keys would replace."""
        if self._waiting is None:
            self._waiting = WaitingKeys(self._core, self._tenant)
        return self._waiting

    def _match(self, message: Message) -> Sequence[Queue]:
        """The caught-up queues that take the current message."""
        if self._ahead is None:
            return self._tenant.index.match(message)
        return self._ahead.match(self._position, message)

    def _match_all(self, message: Message) -> Sequence[Queue]:
        """As ``_match``, plus the queue that this plan creates for the topic."""
        matching = self._match(message)
        created = self._created.get(message.topic)
        return matching if created is None else (*matching, created)

    def _created_for(self, message: Message) -> tuple[Queue, ...]:
        created = self._auto_create(message)
        return () if created is None else (created,)

    def _auto_create(self, message: Message) -> Queue | None:
        """Create a queue for the topic of a message that no caught-up queue takes, if allowed."""
        topic = message.topic
        if not self._core.options.auto_create or topic in self._tenant.queues:
            return None
        ahead, behind = self._ahead, self._tenant.behind
        if behind.match(message) if ahead is None else ahead.match_behind(self._position, message):
            return None  # A queue that is catching up will take it.
        there = len(self._tenant.queues) + len(self._created)
        check_queue_quota(self._core.options.limits, there, topic)
        queue = self._core.new_queue(self._tenant.name, topic, self._now)
        self._created[topic] = queue
        return queue

    # -- applying ----------------------------------------------------------------------

    @property
    def replies(self) -> tuple[Published, ...]:
        """The replies to the producers, in the order of their messages."""
        return tuple(self._replies)

    def apply(self) -> Iterator[None]:
        """Append, route and remember ids, in steps. Nothing can be refused any more."""
        self.is_half_done = True
        for queue in self._created.values():
            self._core.register(queue)
        items, step, now = self._items, self._step, self._now
        if items:
            self._core.log.append(self._tenant.log, [item[1] for item in items])
        writes, recent = self._core.stage.writes, self._core.stage.recent_payloads.add
        for begin in range(0, len(items), step):
            if begin:
                yield
            # Consecutive messages that go to the same queues. That is usually the whole batch, and
            # the index then returns the identical sequence.
            run: list[Logged] = []
            same: Sequence[Queue] = ()
            for new, logged, queues, change in items[begin : begin + step]:
                offset, payload = logged[0].offset, new.payload
                writes[payload_key(offset)] = payload
                recent(offset, payload)
                if queues is not same or change is not None:
                    if run and same:
                        yield from _assign(same, run, now)
                    run, same = [], queues
                if change is not None:
                    # The replaced message may be in this batch: it was assigned above.
                    yield from self._replace(*logged, change)
                run.append(logged)
                if new.key is not None:
                    kept = change.kept if change else ()
                    self._open_again(logged[0], new.key, [*kept, *queues])
                    if len(kept) + len(queues) > _QUEUES_A_STEP:
                        yield
            if len(same) == 1:
                assign_many(same[0], run, now)
            else:
                yield from _assign(same, run, now)
        if self._ids:
            ids = iter(self._ids.items())
            while self._remember(islice(ids, step)):
                yield
        if self._batch is not None:
            topic, batch_id, own_ms = self._batch
            window_ms = self._tenant.topic(topic).dedup_window_ms
            self._core.dedup.remember_batch(
                self._tenant.name, topic, batch_id, self._replies, now, window_ms, own_ms
            )

    def _remember(self, ids: Iterator[tuple[tuple[str, str], FirstPublish]]) -> bool:
        """Remember idempotency ids. Returns whether there were any."""
        found = False
        for (topic, idempotency_id), first in ids:
            found = True
            policy = self._tenant.topic(topic)
            named = (self._tenant.name, topic, idempotency_id)
            window_ms, partitioned = policy.dedup_window_ms, is_partitioned(policy)
            self._core.dedup.remember(*named, first, window_ms, partitioned=partitioned)
        return found

    def _replace(self, message: Message, metadata: bytes, change: Replacement) -> Iterator[None]:
        self._core.log.replaced(message.id, message.offset)
        for position, queue in enumerate(change.left, 1):
            if not position % self._step:
                yield
            claim_id = queue.claim_id(message.priority, message.id)
            delayed = queue.find_delayed(claim_id)
            if delayed is None:
                drop_available(queue, claim_id)
            else:
                drop_delayed(queue, *delayed)
        for position, queue in enumerate(change.kept, 1):
            queue.replace_waiting(*entering(queue.policy, message, metadata, self._now))
            if not position % self._step:
                yield

    def _open_again(self, message: Message, key: str, queues: list[Queue]) -> None:
        record = open_key(self._tenant.name, message.topic, key)
        if queues:
            opened = OpenKey.of(message, (queue.name for queue in queues))
            self._core.stage.put(record, opened.encode())
        else:
            self._core.stage.delete(record)


def _assign(queues: Sequence[Queue], batch: list[Logged], now: int) -> Iterator[None]:
    """Add the messages to each queue, one queue per step."""
    for queue in queues:
        assign_many(queue, batch, now)
        yield


def _copied(headers: Mapping[str, HeaderValue]) -> dict[str, HeaderValue]:
    return dict(headers) if headers else NO_HEADERS


def owned(messages: Sequence[NewMessage]) -> list[NewMessage]:
    """A copy: the producer may change its list and headers while the publish waits."""
    return [replace(new, headers=dict(new.headers)) if new.headers else new for new in messages]
