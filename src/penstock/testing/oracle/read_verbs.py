"""The read-only verbs."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from penstock.errors import UnknownDelivery
from penstock.filters import Selection
from penstock.model.delivery import (
    Event,
    LogEntry,
    LogPage,
    MessageDeliveries,
    PartitionStats,
    QueueStats,
    Result,
    ResultStatus,
    Snapshot,
)
from penstock.model.limits import MAX_ATTEMPTS, MAX_HISTORY_EVENTS
from penstock.model.message import Message, MessageId, Offset
from penstock.model.queue import Ordering, QueueInfo, TopicPolicy
from penstock.model.states import State, Transition
from penstock.testing.oracle.state import Held, Queue, Store

__all__ = [
    "behind",
    "browse",
    "find",
    "history",
    "info",
    "log_end",
    "log_splits",
    "message",
    "next_due",
    "read_log",
    "result",
    "snapshot",
    "stats",
    "tenants",
]


def info(queue: Queue, *, dead: bool) -> QueueInfo:
    """The queue as it is now; the policy of a dead-letter queue is derived from it."""
    policy = queue.policy
    if dead:
        policy = replace(
            policy,
            max_attempts=MAX_ATTEMPTS,
            ordering=Ordering.NONE,
            paused=queue.dead_paused,
        )
    return QueueInfo(
        tenant=queue.tenant,
        name=queue.shown_as(dead=dead),
        policy=policy,
        filter_version=queue.filter_version,
        created_at=queue.created_at,
        cursor=None if dead else queue.cursor,
    )


def snapshot(store: Store, queue: Queue, held: Held, *, failed: bool = False) -> Snapshot:
    """The delivery as it is now; ``failed`` shows a dead letter as its parent queue does."""
    shows_released = held.live and (not held.dead or held.state is State.IN_FLIGHT)
    return Snapshot(
        queue=queue.name if failed else queue.shown_as(dead=held.dead),
        message=store.message(queue, held),
        state=State.FAILED if failed else held.state,
        attempts=held.attempts,
        released=held.released if shows_released else 0,
        at=held.due_at if held.state is State.DELAYED else held.at,
        claimed_at=held.claimed_at,
        lease_deadline=held.lease_deadline,
        consumer=held.consumer,
        error=held.error,
    )


def browse(
    store: Store, queue: Queue, state: State, where: Selection | None, *, dead: bool
) -> list[Snapshot]:
    """All deliveries in ``state``, in claim order."""
    failed = state is State.FAILED and not dead
    if failed:
        held = [d for d in queue.held(dead=True) if d.state is State.AVAILABLE]
    else:
        held = [d for d in queue.held(dead=dead) if d.state is state]
    held.sort(key=lambda d: store.place(queue, d))
    shown = [snapshot(store, queue, d, failed=failed) for d in held]
    return [s for s in shown if where is None or where.matches(s.message)]


def find(
    store: Store, tenant: str, topic: str, id: str, partition_key: str | None, now: int
) -> Message | None:
    """The newest entry of the message with this id in the scope of the topic."""
    policy = store.topics.get((tenant, topic), TopicPolicy())
    scope = None if policy.dedup_scope == "topic" else partition_key or ""
    seen = store.ids.get((tenant, topic, scope, id))
    if seen is None or seen[0] + policy.dedup_window_ms <= now:
        return None
    newest = store.messages.get((tenant, seen[1]))
    return None if newest is None else newest.message


def message(store: Store, tenant: str, message_id: MessageId) -> MessageDeliveries:
    """The message and its deliveries."""
    newest = store.newest(tenant, message_id)
    shown = [
        _with_receipt(snapshot(store, queue, held, failed=_is_dead_letter(held)), held)
        for queue in store.queues_of(tenant)
        if (held := queue.deliveries.get(message_id)) is not None
    ]
    shown.sort(key=lambda s: s.queue)
    return MessageDeliveries(
        message=newest.message, payload=newest.payload, deliveries=tuple(shown)
    )


def _is_dead_letter(held: Held) -> bool:
    return held.dead and held.state is State.AVAILABLE


def _with_receipt(shown: Snapshot, held: Held) -> Snapshot:
    """The snapshot with the receipt of the current claim, if there is one."""
    return replace(shown, receipt=held.receipt) if held.state is State.IN_FLIGHT else shown


def result(store: Store, queue: Queue, message_id: MessageId, *, dead: bool) -> Result | None:
    """How the delivery ended."""
    message = store.newest(queue.tenant, message_id).message
    held = queue.deliveries.get(message_id)
    if held is None:
        if queue.cursor is not None and message.offset >= queue.cursor:
            return None
        raise UnknownDelivery(f"{queue.name!r} has no delivery of {message_id}.", field="id")
    status: ResultStatus | None = None
    if held.state is State.DONE and (held.dead or not dead):
        status = ResultStatus.DONE
    elif held.dead and not dead:
        status = ResultStatus.FAILED
    elif held.state is State.EXPIRED and not dead:
        status = ResultStatus.EXPIRED
    if status is None:
        return None
    return Result(
        message_id=message_id,
        status=status,
        result=held.result if status is ResultStatus.DONE else None,
        error=None if status is ResultStatus.DONE else held.error,
        attempts=held.attempts,
        at=held.at or 0,
    )


def history(store: Store, tenant: str, message_id: MessageId) -> tuple[Event, ...]:
    """All events of all deliveries, by time."""
    message = store.newest(tenant, message_id).message
    events: list[Event] = []
    for queue in store.queues_of(tenant):
        held = queue.deliveries.get(message_id)
        if held is not None:
            events += [_publish(queue, message), *held.events[-MAX_HISTORY_EVENTS:]]
    return tuple(sorted(events, key=lambda e: e.at))


def _publish(queue: Queue, message: Message) -> Event:
    delayed = message.deliver_at > message.published_at
    return Event(
        at=message.published_at,
        queue=queue.name,
        transition=Transition.PUBLISH,
        state=State.DELAYED if delayed else State.AVAILABLE,
    )


def log_end(store: Store, tenant: str) -> Offset:
    """The offset after the last entry ever appended."""
    return store.ends.get(tenant, Offset(0))


def log_trimmed(store: Store, tenant: str) -> Offset:
    """The offset after the last removed entry."""
    return store.trimmed.get(tenant, Offset(0))


def log_splits(
    store: Store, tenant: str, start: Offset, end: Offset, entries: int
) -> tuple[Offset, ...]:
    """Cut the log every ``entries`` entries."""
    last = min(end, log_end(store, tenant))
    if last <= start:
        return (start,)
    offsets = [e.message.offset for e in store.entries_of(tenant)]
    return (start, *[o for o in offsets if start <= o < last][entries::entries], last)


def read_log(store: Store, tenant: str, start: Offset, limit: int, *, payloads: bool) -> LogPage:
    """Entries from ``start`` on."""
    entries = [e for e in store.entries_of(tenant) if e.message.offset >= start][:limit]
    return LogPage(
        entries=tuple(
            LogEntry(message=e.message, payload=e.payload if payloads else None) for e in entries
        ),
        next_offset=Offset(entries[-1].message.offset + 1) if entries else start,
    )


def tenants(store: Store) -> tuple[str, ...]:
    """Tenants with a queue or a topic, or that have ever published."""
    return tuple(
        sorted({t for t, _ in store.queues} | {t for t, _ in store.topics} | {*store.ends})
    )


def behind(store: Store) -> tuple[tuple[str, str], ...]:
    """The queues with a cursor."""
    return tuple(sorted(name for name, queue in store.queues.items() if queue.cursor is not None))


def next_due(store: Store, queue: Queue, *, dead: bool) -> int | None:
    """The first time at which a claim would return more than now.

    In an ordered queue this includes the deadline of a consumer and the expiry of a delayed
    delivery: either may unblock later deliveries.
    """
    if queue.dead_paused if dead else queue.policy.paused:
        return None
    held = queue.held(dead=dead)
    delayed = [d for d in held if d.state is State.DELAYED]
    times = [d.due_at for d in delayed]
    times += [d.lease_deadline for d in held if d.state is State.IN_FLIGHT]
    if not dead and queue.policy.ordering is Ordering.PARTITION:
        times += [store.message(queue, d).expires_at for d in delayed]
        times += queue.consumers.values() if any(d.live for d in held) else []
    return min((time for time in times if time is not None), default=None)


def stats(store: Store, queue: Queue, now: int, *, dead: bool) -> QueueStats:
    """Count everything (Q2)."""
    held = queue.held(dead=dead)
    states = Counter(d.state for d in held)
    waiting = [d for d in held if d.live]
    available = [d for d in held if d.state is State.AVAILABLE]
    firsts: dict[int, Held] = {}
    for one in sorted(available, key=lambda d: store.place(queue, d)):
        firsts.setdefault(store.place(queue, one)[0], one)
    ages = [now - store.message(queue, d).published_at for d in firsts.values()]
    counters = queue.counters_of(dead=dead)
    ahead = 0
    if not dead and queue.cursor is not None:
        log = store.entries_of(queue.tenant)
        ahead = sum(e.message.offset >= queue.cursor for e in log)
    ordered = not dead and queue.policy.ordering is Ordering.PARTITION
    return QueueStats(
        delayed=states[State.DELAYED],
        available=states[State.AVAILABLE],
        in_flight=states[State.IN_FLIGHT],
        done=states[State.DONE],
        failed=0 if dead else sum(d.live for d in queue.held(dead=True)),
        expired=states[State.EXPIRED],
        oldest_available_ms=max(ages, default=None),
        in_flight_by_consumer=dict(Counter(d.consumer for d in held if d.consumer is not None)),
        grants=counters.grants,
        acks=counters.acks,
        nacks=counters.nacks,
        failures=counters.failures,
        watermark=_watermark(store, queue, waiting, dead=dead),
        lag=len(waiting) + ahead,
        partitions=_partition_stats(store, queue, waiting) if ordered else (),
    )


def _watermark(store: Store, queue: Queue, waiting: list[Held], *, dead: bool) -> Offset:
    """Below the first unsettled message, and below the first unrouted entry."""
    ends: list[int] = [d.message_id for d in waiting]
    if not dead and queue.cursor is not None:
        ends.append(queue.cursor)
    return Offset(min(ends, default=log_end(store, queue.tenant)) - 1)


def _partition_stats(store: Store, queue: Queue, waiting: list[Held]) -> tuple[PartitionStats, ...]:
    shown = []
    for partition in store.partitions(queue):
        of_it = [d for d in waiting if store.partition(queue, d) == partition]
        owner = queue.owners.get(partition)
        shown.append(
            PartitionStats(
                partition=partition,
                owner=None if owner is None else owner.consumer,
                epoch=0 if owner is None else owner.epoch,
                unsettled=len(of_it),
                in_flight=sum(d.state is State.IN_FLIGHT for d in of_it),
                watermark=_watermark(store, queue, of_it, dead=False),
            )
        )
    return tuple(shown)
