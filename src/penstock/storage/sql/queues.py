"""Queues and topics: the verbs that change the catalog. Each raises the tenant's version (R1)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from penstock.errors import BadName, CommitFailed, StoreBusy, UnknownTopic
from penstock.filters import parse
from penstock.model.fixed_fields import changed_fixed_field, not_empty
from penstock.model.limits import is_dead_letter
from penstock.model.message import Offset
from penstock.model.queue import (
    IfExists,
    Ordering,
    QueueInfo,
    QueuePolicy,
    Start,
    TopicPolicy,
    auto_created_policy,
    check_unchanged,
    keeps_existing,
)
from penstock.storage.quotas import check_filter_quota, check_queue_quota
from penstock.storage.sql import compaction
from penstock.storage.sql.catalog import Queue, encode_policy
from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import LIVE, Phase, message_id, segment_of
from penstock.storage.sql.ids import TOPIC_KINDS
from penstock.storage.sql.route import route
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.work import Work

__all__ = [
    "delete_queue",
    "delete_topic",
    "ensure_queue",
    "get_queue",
    "get_topic",
    "list_queues",
    "list_topics",
    "make_queue",
    "pause",
    "put_queue",
    "put_topic",
]

#: How often, and at what intervals, a new max_depth looks for publishes in progress: about ten
#: seconds in all.
_LOOKS: Final = 26
_PAUSE_S: Final = 0.005
_MAX_PAUSE_S: Final = 0.5

#: Deliveries in these phases, waiting or failed, prevent a change of layout.
_HELD: Final = (*LIVE, Phase.DEAD_RETURNED, Phase.DEAD_DELAYED, Phase.DEAD_IN_FLIGHT)


async def put_queue(
    core: Core,
    tenant: str,
    name: str,
    policy: QueuePolicy,
    start: Start,
    if_exists: IfExists = IfExists.REPLACE,
    was: QueuePolicy | None = None,
) -> QueueInfo:
    """Create the queue, or do with an existing one what ``if_exists`` says."""
    _refuse_dead_letter(name)
    parse(policy.filter)
    settled = (await core.stable()).settled

    async def act(work: Work) -> tuple[Queue, bool, bool]:
        queue = work.tenant.queues.get(name)
        if was is not None:
            check_unchanged(name, None if queue is None else queue.policy, was)
        if queue is not None:
            if keeps_existing(name, queue.policy, policy, if_exists):
                return queue, False, False
            check_filter_quota(
                core.options.limits,
                work.tenant.unindexed,
                parse(policy.filter),
                parse(queue.policy.filter),
            )
            changed = await _change(work, queue, policy, settled)
            bounds = queue.policy.max_depth is None and policy.max_depth is not None
            return changed, policy.ordering != queue.policy.ordering, bounds
        limits = core.options.limits
        check_queue_quota(limits, len(work.tenant.queues), name)
        check_filter_quota(limits, work.tenant.unindexed, parse(policy.filter))
        cursor = await _cursor(core, work, start, settled)
        return await make_queue(work, name, policy, cursor), cursor is not None, False

    queue, routes, bounds = await core.transact(tenant, act)
    # The queue is committed: errors of the following steps must not fail the call (E1).
    with suppress(StoreBusy, CommitFailed):
        if bounds:
            await _wait_for_publishes(core)
        if routes:
            # If there is nothing to catch up with or to backfill, this records that.
            await route(core, tenant, name, 0)
        return await get_queue(core, tenant, name)
    return queue.info()


async def _wait_for_publishes(core: Core) -> None:
    """Wait until the publishes in progress have ended, but not forever.

    They may not know of a new ``max_depth``, so they do not lock the queue. A publish that begins
    after this sees all of their deliveries, and ``max_depth`` is exact. A caller's own transaction
    may stay open for longer than this waits.
    """
    began = (await core.stable()).given
    for nth in range(_LOOKS):
        oldest = (await core.stable()).oldest
        if oldest is None or oldest > began:
            return
        await asyncio.sleep(min(_PAUSE_S * 2**nth, _MAX_PAUSE_S))


async def make_queue(work: Work, name: str, policy: QueuePolicy, cursor: Offset | None) -> Queue:
    """Insert a new queue in this transaction."""
    session, tenant = work.session, work.tenant
    await session.run(
        "make_queue",
        tenant=tenant.number,
        name=name,
        policy=encode_policy(policy),
        now=work.now,
        cursor=cursor,
    )
    ((number,),) = await session.fetch("find_queue", tenant=tenant.number, name=name)
    await _raise_version(work)
    queue = Queue(
        number=number,
        tenant=tenant.name,
        name=name,
        policy=policy,
        filter_version=1,
        created_at=work.now,
        cursor=cursor,
        joining=False,
        dead_paused=False,
    )
    work.notify(queue)
    work.notify(queue, dead=True)
    return queue


async def ensure_queue(core: Core, tenant: str, name: str) -> None:
    """Create the queue for a topic that no queue takes, unless it exists by now."""

    async def act(work: Work) -> None:
        if name not in work.tenant.queues:
            check_queue_quota(core.options.limits, len(work.tenant.queues), name)
            demand, default = work.tenant.topic(name), core.options.default_policy
            await make_queue(work, name, auto_created_policy(name, demand, default), None)

    await core.transact(tenant, act)


async def _cursor(core: Core, work: Work, start: Start, settled: int) -> Offset | None:
    """The initial cursor: the first entry that ``start`` includes, or the end of the log.

    A queue that takes history starts behind even if the log has nothing for it: a running
    publish may not know the queue yet (see ``route``).
    """
    if start.at == Start.LATEST:
        return None
    first, index = segment_of(max(start.value, 0)) if start.at == Start.OFFSET else (0, 0)
    since = start.value if start.at == Start.TIME else 0
    # A replacement has the time of the message it replaces, so the metadata must be read.
    while True:
        rows = await work.session.fetch(
            "first_entry", tenant=work.tenant.number, segment=first, published_at=since
        )
        if not rows or rows[0][0] > settled:
            return Offset(message_id(settled + 1, 0))
        number = rows[0][0]
        segments = await core.segments.read(work.session, work.tenant.number, [number])
        found = _first(segments[number], index if number == first else 0, since)
        if found is not None:
            return found
        first, index = number + 1, 0


def _first(segment: Segment, index: int, since: int) -> Offset | None:
    for position in range(index, len(segment.metadata)):
        message = segment.message(position)
        if message.published_at >= since:
            return message.offset
    return None


async def _change(work: Work, queue: Queue, policy: QueuePolicy, settled: int) -> Queue:
    old = queue.policy
    fixed = changed_fixed_field(old, policy)
    if fixed is not None:
        # Lock first: a route or a replay counts what it adds before it releases this lock.
        routed = await compaction.lock(work, queue)
        rows = await work.session.fetch(
            "depths", queues=[queue.number], kinds=[int(phase) for phase in _HELD]
        )
        if any(int(depth or 0) for _, depth in rows):
            raise not_empty(queue.name, fixed)
        if policy.ordering != old.ordering:
            await work.session.run("clear_consumers", queue=queue.number)
            await work.session.run("clear_owners", queue=queue.number)
            ordered = policy.ordering is Ordering.PARTITION
            await compaction.begin(work, queue, routed, settled, ordered=ordered)
    version = queue.filter_version + (policy.filter != old.filter)
    await work.session.run(
        "change_queue",
        queue=queue.number,
        policy=encode_policy(policy),
        filter_version=version,
    )
    await _raise_version(work)
    work.notify(queue)
    return replace(queue, policy=policy, filter_version=version)


async def get_queue(core: Core, tenant: str, name: str) -> QueueInfo:
    """The current queue."""
    known = await core.catalog.reload(tenant)
    queue, dead = known.find(name)
    return queue.info(dead=dead)


async def list_queues(core: Core, tenant: str) -> tuple[QueueInfo, ...]:
    """All queues of the tenant by name."""
    known = await core.catalog.reload(tenant)
    return tuple(queue.info() for _, queue in sorted(known.queues.items()))


async def delete_queue(core: Core, tenant: str, name: str) -> None:
    """Delete the queue. It is unreachable immediately; the sweep removes its rows."""
    _refuse_dead_letter(name)

    async def act(work: Work) -> None:
        queue, _ = work.tenant.find(name)
        await work.session.fetch("lock_queue", queue=queue.number)
        await work.session.run("delete_queue", queue=queue.number)
        await work.session.run("drop_queue", queue=queue.number, now=work.now)
        await _raise_version(work)

    await core.transact(tenant, act)
    # Wake waiters, so that they see the deletion.
    for dead in (name, f"{name}.dlq"):
        core.listener.ready(tenant, dead)


async def pause(core: Core, tenant: str, name: str, *, paused: bool) -> None:
    """Pause or resume claims."""

    async def act(work: Work) -> None:
        queue, dead = work.tenant.find(name)
        if dead:
            await work.session.run("pause_dead_letters", queue=queue.number, paused=paused)
        else:
            policy = replace(queue.policy, paused=paused)
            await work.session.run(
                "change_queue",
                queue=queue.number,
                policy=encode_policy(policy),
                filter_version=queue.filter_version,
            )
        await _raise_version(work)
        work.notify(queue, dead=dead)

    await core.transact(tenant, act)


async def put_topic(core: Core, tenant: str, name: str, policy: TopicPolicy) -> None:
    """Register the topic, or replace its policy."""

    async def act(work: Work) -> None:
        number = work.tenant.number
        await work.session.run("put_topic", tenant=number, name=name, policy=encode_policy(policy))
        await _date_ids(work, name, policy)
        await _raise_version(work)

    await core.transact(tenant, act)


async def get_topic(core: Core, tenant: str, name: str) -> TopicPolicy | None:
    """The topic's policy, or None."""
    return (await core.catalog.reload(tenant)).topics.get(name)


async def list_topics(core: Core, tenant: str) -> tuple[tuple[str, TopicPolicy], ...]:
    """All registered topics by name."""
    return tuple(sorted((await core.catalog.reload(tenant)).topics.items()))


async def delete_topic(core: Core, tenant: str, name: str) -> None:
    """Delete the topic's policy."""

    async def act(work: Work) -> None:
        if name not in work.tenant.topics:
            raise UnknownTopic(f"There is no topic {name!r}.", field="topic")
        await work.session.run("delete_topic", tenant=work.tenant.number, name=name)
        await _date_ids(work, name, TopicPolicy())
        await _raise_version(work)

    await core.transact(tenant, act)


async def _date_ids(work: Work, topic: str, policy: TopicPolicy) -> None:
    """Adjust the expiry of the topic's ids to its new dedup window (P4)."""
    if policy.dedup_window_ms == work.tenant.topic(topic).dedup_window_ms:
        return
    for kind in TOPIC_KINDS:
        await work.session.run(
            "date_ids",
            tenant=work.tenant.number,
            kind=kind,
            topic=topic,
            window=policy.dedup_window_ms,
        )


async def _raise_version(work: Work) -> None:
    await work.session.run("raise_version", tenant=work.tenant.number)
    work.raised += 1


def _refuse_dead_letter(name: str) -> None:
    if is_dead_letter(name):
        raise BadName(f"Queue {name!r} is created and deleted with its queue.", field="queue")
