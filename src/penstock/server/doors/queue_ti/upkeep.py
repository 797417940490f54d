"""What operators of queue-ti do with topics: configure, group, purge, replay, trim, reap."""

from __future__ import annotations

from typing import Final

from penstock.broker import Broker
from penstock.broker.queues import new_policy
from penstock.errors import QueueExists, UnknownQueue
from penstock.model.limits import check_whole
from penstock.model.names import escape
from penstock.model.queue import MAX_TTL_MS, Backoff, QueueInfo, Start
from penstock.model.states import State
from penstock.server.doors.queue_ti.listing import topics_of, walk
from penstock.server.doors.queue_ti.messages import EXPIRED, PENDING, PROCESSING, ttl_ms
from penstock.server.doors.queue_ti.refusals import QueueTiError, invalid, not_found
from penstock.server.doors.queue_ti.topics import (
    DEFAULT_VISIBILITY_S,
    GROUP_LABEL,
    TOPIC_LABEL,
    Limits,
    TopicConfig,
    TopicName,
    base_queue,
    config_of,
    dlq_of,
    ensure_base,
    group_of,
    group_queues,
    has_config,
    label_changes,
    queues_of,
    topic_filter,
)

__all__ = [
    "STATUSES",
    "add_group",
    "configs",
    "delete_by_key",
    "delete_config",
    "delete_group",
    "expire",
    "groups",
    "purge",
    "put_config",
    "reap_expired",
    "reap_log",
    "replay",
    "trim_log",
]

STATUSES: Final = (PENDING, PROCESSING, EXPIRED)
_PURGED: Final = {
    PENDING: (State.AVAILABLE, State.DELAYED),
    PROCESSING: (State.IN_FLIGHT,),
    EXPIRED: (State.EXPIRED,),
}
#: Passes of the router that catch up a new group before the reply; the keeper does the rest.
_ROUTE_PASSES: Final = 5
_NO_MESSAGE: Final = " AND FALSE"


# -- configuration -----------------------------------------------------------------------


async def configs(broker: Broker) -> list[TopicConfig]:
    """Every configured topic."""
    return [config_of(info) for info in await broker.queues() if has_config(info)]


async def put_config(
    broker: Broker, limits: Limits, topic: TopicName, config: TopicConfig
) -> TopicConfig:
    """Configure a topic, and register it."""
    if config.message_ttl_seconds is not None:
        check_whole("message_ttl_seconds", config.message_ttl_seconds, 0, MAX_TTL_MS // 1000)
    new_policy(limits.policy(config))  # Refuses it before anything is created.
    base = await ensure_base(broker, topic, limits)
    if await broker.topic(topic.name) is None:
        await broker.put_topic(topic.name)
    await _apply(broker, limits, topic, base, config)
    return config


async def delete_config(broker: Broker, limits: Limits, topic: TopicName) -> None:
    """Give a topic the defaults again."""
    base = await base_queue(broker, topic)
    if base is None or not has_config(base):
        raise not_found("topic config not found")
    await _apply(broker, limits, topic, base, None)


async def _apply(
    broker: Broker, limits: Limits, topic: TopicName, base: QueueInfo, config: TopicConfig | None
) -> None:
    effective = config or TopicConfig(topic=topic.text, replayable=False)
    policy = limits.policy(effective)
    labels = label_changes(base, config)
    await broker.update_queue(base.name, labels=labels, **policy)  # type: ignore[arg-type]
    for info in await group_queues(broker, topic):
        await broker.update_queue(info.name, **policy)  # type: ignore[arg-type]


# -- consumer groups ---------------------------------------------------------------------


async def groups(broker: Broker, topic: TopicName) -> list[str]:
    """The consumer groups of a topic, by name."""
    return sorted(group_of(info) for info in await group_queues(broker, topic))


async def add_group(broker: Broker, limits: Limits, topic: TopicName, group: str) -> None:
    """Create the queue of a group, with the messages that are pending in the topic."""
    base = await ensure_base(broker, topic, limits)
    name = topic.queue(group)
    start = (await broker.stats(base.name)).watermark + 1
    try:
        await broker.queue(name)
    except UnknownQueue:
        pass
    else:
        raise QueueExists("consumer group already registered", field="consumer_group")
    await broker.create_queue(
        name,
        topic_filter(topic.name),
        start=Start(Start.OFFSET, start),
        lease_ms=DEFAULT_VISIBILITY_S * 1000,
        backoff=Backoff(0, 0),
        labels={TOPIC_LABEL: topic.name, GROUP_LABEL: escape(group)},
        **limits.policy(config_of(base)),  # type: ignore[arg-type]
    )
    for _ in range(_ROUTE_PASSES):
        if (await broker.route(name)).cursor is None:
            break
    # A message of a topic with groups is pending until each of them has acked it, and no longer.
    if TOPIC_LABEL in base.policy.labels:
        await broker.update_queue(base.name, filter=topic_filter(topic.name) + _NO_MESSAGE)


async def delete_group(broker: Broker, topic: TopicName, group: str) -> None:
    """Remove the queue of a group."""
    name = topic.queue(group)
    known = await group_queues(broker, topic)
    if all(info.name != name for info in known):
        raise not_found("consumer group not found")
    await broker.delete_queue(name)
    base = await base_queue(broker, topic)
    if len(known) == 1 and base is not None and TOPIC_LABEL in base.policy.labels:
        await broker.update_queue(base.name, filter=topic_filter(topic.name))


# -- messages ----------------------------------------------------------------------------


async def purge(broker: Broker, topic: TopicName, statuses: list[str]) -> int:
    """Delete the messages with one of these statuses; none is all of them."""
    chosen = statuses or list(STATUSES)
    for status in chosen:
        if status not in STATUSES:
            raise invalid(f"invalid status {status!r}", "statuses")
    deleted = 0
    for info in await queues_of(broker, topic):
        for status in dict.fromkeys(chosen):
            if topic.is_dlq:
                deleted += await _purge_dead(broker, info.name, status)
            else:
                for state in _PURGED[status]:
                    deleted += await _delete(broker, info.name, state, None)
    return deleted


async def _purge_dead(broker: Broker, queue: str, status: str) -> int:
    if status == PENDING:
        return await _delete(broker, queue, State.FAILED, None)
    if status == PROCESSING:
        return await _delete(broker, dlq_of(queue), State.IN_FLIGHT, None)
    return 0


async def delete_by_key(broker: Broker, topic: TopicName, key: str) -> int:
    """Delete the messages with this key that were not acked."""
    where = "key = '" + key.replace("'", "''") + "'"
    deleted = 0
    for info in await queues_of(broker, topic):
        if topic.is_dlq:
            deleted += await _delete(broker, info.name, State.FAILED, where)
            deleted += await _delete(broker, dlq_of(info.name), State.IN_FLIGHT, where)
            continue
        for state in (State.AVAILABLE, State.DELAYED, State.IN_FLIGHT):
            deleted += await _delete(broker, info.name, state, where)
    return deleted


async def _delete(broker: Broker, queue: str, state: State, where: str | None) -> int:
    """Delete deliveries; those in flight one by one, so that their receipts become stale."""
    if state is not State.IN_FLIGHT:
        deleted, more = 0, True
        while more:
            reply = await broker.purge(queue, state, where=where)
            deleted, more = deleted + reply.count, reply.more
        return deleted
    deleted = 0
    async for items in walk(broker, queue, state, where=where):
        for item in items:
            deleted += (await broker.cancel(item.message.id, queue=queue)).count
    return deleted


async def replay(broker: Broker, topic: TopicName, from_ms: int | None, now: int) -> int:
    """Make the acked messages pending again."""
    base = await base_queue(broker, topic)
    config = None if base is None else config_of(base)
    if config is None or not config.replayable:
        raise QueueTiError(422, "FAILED_PRECONDITION", "topic is not replayable")
    window = config.replay_window_seconds
    if from_ms is not None and window is not None and from_ms < now - window * 1000:
        raise QueueTiError(422, "FAILED_PRECONDITION", "from_time is outside the replay window")
    where = None if from_ms is None else f"published_at >= {from_ms}"
    enqueued = 0
    for info in await queues_of(broker, topic):
        reply = await broker.replay(info.name, "done", where=where, ttl_ms=ttl_ms(config))
        enqueued += reply.count
    return enqueued


async def trim_log(broker: Broker, topic: TopicName, before_ms: int) -> int:
    """Delete the acked messages that were acked before a time."""
    deleted = 0
    for info in await queues_of(broker, topic):
        async for items in walk(broker, info.name, State.DONE):
            old = [item.message.id for item in items if (item.at or 0) < before_ms]
            if old:
                deleted += (await broker.purge(info.name, State.DONE, ids=old)).count
    return deleted


# -- reapers -----------------------------------------------------------------------------


async def expire(broker: Broker) -> int:
    """Expire what is past its time, in every tenant; returns how many messages expired."""
    expired, more = 0, True
    while more:
        reply = await broker.sweep()
        expired, more = expired + reply.expired, reply.more
    return expired


async def reap_expired(broker: Broker) -> int:
    """Delete the expired messages of all topics."""
    deleted = 0
    for info in await topics_of(broker):
        deleted += await _delete(broker, info.name, State.EXPIRED, None)
    return deleted


async def reap_log(broker: Broker, now: int) -> int:
    """Delete the acked messages that are older than the replay window of their topic."""
    deleted = 0
    for config in await configs(broker):
        if config.replay_window_seconds is not None:
            topic = TopicName(config.topic, escape(config.topic), is_dlq=False)
            deleted += await trim_log(broker, topic, now - config.replay_window_seconds * 1000)
    return deleted
