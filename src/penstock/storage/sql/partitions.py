"""Partitions: ownership in an ordered queue (O1).

A partition exists while it has something to deliver. A consumer is live until the deadline of
its last heartbeat; every claim is a heartbeat. A transaction that changes ownership locks the
queue's row, so these changes are serialised across servers; publishes and settles do not wait
for them. When a partition changes owner, its deliveries in flight are taken back, so an older
epoch has no current receipt.

The owner's row is deleted with the partition's last delivery, by a settle that runs beside the
claims. So a row may be left if two settles end a partition together, or be missing if a message
was published meanwhile. Therefore rows count only if the partition has something to deliver, and
a consumer that takes a partition takes back what others have in flight there.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.errors import Conflict, UnknownQueue
from penstock.model.delivery import Delivery, Ownership, PartitionStats
from penstock.model.limits import CONSUMER_LEASE_MS, MAX_CLAIM_BYTES
from penstock.model.message import MessageId, Offset
from penstock.model.states import Transition
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row, Session
from penstock.storage.sql.deliveries import DeliveryGroup, Phase, segment_of
from penstock.storage.sql.granting import (
    Claim,
    Granted,
    deliver,
    grant,
    large_segments,
    look_at_clock,
)
from penstock.storage.sql.work import Work

__all__ = ["claim", "drop_dead_consumers", "hand_out", "join", "leave", "lock", "partition_stats"]


async def lock(work: Work, queue: Queue) -> int:
    """Lock the queue's ownership; returns its last epoch.

    Must precede every other lock of the queue.
    """
    rows = await work.session.fetch("lock_queue", queue=queue.number)
    if not rows:
        raise UnknownQueue(f"There is no queue {queue.name!r}.", field="queue")
    *_, epoch = rows[0]
    return int(epoch)


async def claim(core: Core, work: Work, queue: Queue, asked: Claim) -> list[Delivery]:
    """Heartbeat, then hand out from the consumer's partitions; the queue must be locked."""
    own = await _heartbeat(work, queue, asked.consumer)
    if not own or queue.paused(dead=False):
        return []
    granted = await hand_out(core, work, queue, asked)
    (deliveries,) = await deliver(core, work, queue, [granted], dead=False)
    if granted:
        await work.write()
    return deliveries


async def join(core: Core, tenant: str, queue: str, consumer: str) -> Ownership:
    """Renew the consumer's lease, and adjust its partitions to its share."""

    async def act(work: Work) -> Ownership:
        found, dead = work.tenant.find(queue)
        if dead or not found.ordered:
            raise Conflict(f"Queue {queue!r} is not ordered by partition.", field="queue")
        await lock(work, found)
        own = await _heartbeat(work, found, consumer)
        return Ownership(
            consumer=consumer,
            partitions={key.decode(): epoch for key, epoch in sorted(own.items())},
            deadline=work.now + CONSUMER_LEASE_MS,
        )

    return await core.transact(tenant, act)


async def leave(core: Core, tenant: str, queue: str, consumer: str) -> None:
    """Give everything back immediately."""

    async def act(work: Work) -> None:
        found, dead = work.tenant.find(queue)
        if not dead and found.ordered:
            await lock(work, found)
            await _drop(work, found, [consumer], Transition.RELEASE)

    await core.transact(tenant, act)


async def drop_dead_consumers(work: Work, queue: Queue) -> None:
    """Remove consumers whose heartbeat deadline has passed.

    Locks the queue if there are any, so this must precede every other lock.
    """
    if _dead(await _consumers(work, queue), work.now):
        await lock(work, queue)
        await _drop(work, queue, _dead(await _consumers(work, queue), work.now), Transition.LAPSE)


async def partition_stats(session: Session, queue: Queue) -> tuple[PartitionStats, ...]:
    """The partitions that have something to deliver, by name."""
    rows = await session.fetch("partition_stats", queue=queue.number)
    return tuple(
        PartitionStats(
            partition=partition.decode(),
            owner=owner,
            epoch=epoch or 0,
            unsettled=int(unsettled),
            in_flight=int(in_flight),
            # At most one below the cursor: the rest is not routed yet.
            watermark=Offset(int(first if cursor is None else min(first, cursor)) - 1),
        )
        for partition, unsettled, in_flight, first, owner, epoch, cursor in rows
    )


async def _heartbeat(work: Work, queue: Queue, consumer: str) -> dict[bytes, int]:
    """Renew, release the excess, take free partitions; returns the consumer's partitions."""
    consumers = await _consumers(work, queue)
    dead = _dead(consumers, work.now)
    if dead:
        await _drop(work, queue, dead, Transition.LAPSE)
        # Their deliveries may have been the last of a partition; write before reading ownership.
        await work.write()
        for name in dead:
            del consumers[name]
    deadline = work.now + CONSUMER_LEASE_MS
    if consumers.get(consumer) != deadline:
        await work.session.run("put_consumer", queue=queue.number, name=consumer, deadline=deadline)
    if consumer not in consumers:
        consumers[consumer] = deadline
        work.notify(queue)
    partitions, own, free = await _list(work, queue, consumer)
    share = _share(partitions, consumers, consumer)
    if len(own) > share:
        excess = await _excess(work, queue, own, len(own) - share)
        await _free(work, queue, excess, Transition.RELEASE)
        await work.write()
        for partition in excess:
            del own[partition]
    elif len(own) < share and free:
        own |= await _take(work, queue, consumer, free[: share - len(own)])
    return own


async def _consumers(work: Work, queue: Queue) -> dict[str, int]:
    """The consumers of the queue, and their deadlines."""
    rows = await work.session.fetch("list_consumers", queue=queue.number)
    return {str(name): int(deadline) for name, deadline in rows}


def _dead(consumers: dict[str, int], now: int) -> list[str]:
    return sorted(name for name, deadline in consumers.items() if deadline <= now)


def _share(partitions: int, consumers: Iterable[str], consumer: str) -> int:
    """The number of partitions that the consumer may own."""
    names = sorted(consumers)
    each, more = divmod(partitions, len(names))
    return max(1, each + (names.index(consumer) < more))


async def _list(
    work: Work, queue: Queue, consumer: str
) -> tuple[int, dict[bytes, int], list[bytes]]:
    """The number of partitions, the consumer's own with their epochs, and the free ones."""
    rows = await work.session.fetch("list_partitions", queue=queue.number, consumer=consumer)
    own: dict[bytes, int] = {}
    free: list[bytes] = []
    for _, partition, epoch in rows:
        if epoch is not None:
            own[partition] = epoch
        elif partition is not None:
            free.append(partition)
    return int(rows[0][0]), own, free


async def _excess(work: Work, queue: Queue, own: Iterable[bytes], number: int) -> list[bytes]:
    """The partitions that a consumer releases: idle ones first, then from the last name on."""
    rows = await _in_flight(work, queue, own)
    busy = {partition for partition, *_ in rows}
    return sorted(sorted(own, reverse=True), key=busy.__contains__)[:number]


async def _take(work: Work, queue: Queue, consumer: str, free: Sequence[bytes]) -> dict[bytes, int]:
    """Make the consumer the owner of these partitions, each in a new epoch."""
    if await _take_back(work, queue, free, Transition.RELEASE, unless=consumer):
        await work.write()
    epoch = await lock(work, queue)
    taken = {partition: epoch + nth for nth, partition in enumerate(free, 1)}
    await work.session.write(
        "put_owners", [(queue.number, key, consumer, number) for key, number in taken.items()]
    )
    await work.session.run("raise_epoch", queue=queue.number, epoch=epoch + len(taken))
    work.notify(queue)
    return taken


async def _drop(work: Work, queue: Queue, consumers: Sequence[str], transition: Transition) -> None:
    """Remove these consumers and all their partitions."""
    if not consumers:
        return
    rows = await work.session.fetch(
        "owned_partitions", queue=queue.number, consumers=list(consumers)
    )
    await _free(work, queue, [partition for (partition,) in rows], transition)
    await work.session.run("drop_consumers", queue=queue.number, names=list(consumers))
    # The share of the others is larger now, even if there was nothing to free.
    work.notify(queue)


async def _free(
    work: Work, queue: Queue, partitions: Sequence[bytes], transition: Transition
) -> None:
    """Take back the deliveries in flight of these partitions, and remove their owners."""
    if not partitions:
        return
    await _take_back(work, queue, partitions, transition)
    await work.session.run("release_owners", queue=queue.number, partitions=list(partitions))
    work.notify(queue)


async def _take_back(
    work: Work,
    queue: Queue,
    partitions: Sequence[bytes],
    transition: Transition,
    *,
    unless: str | None = None,
) -> bool:
    """End the claims in these partitions except one consumer's; returns whether there were any.

    A concurrent settle may move a delivery that it extends to another row. So the search for
    deliveries in flight is repeated until all of them are held here.
    """
    held: set[tuple[int, int]] = set()
    while True:
        missing = [
            (rank, row_key)
            for _, consumer, rank, row_key in await _in_flight(work, queue, partitions)
            if consumer != unless and (rank, row_key) not in held
        ]
        if not missing:
            return bool(held)
        for group in await work.lock_groups(queue.number, Phase.IN_FLIGHT, missing):
            assert group.row_key is not None
            held.add((group.rank, group.row_key))
            moves.give_back(work, queue, group, group.members, transition)


async def _in_flight(work: Work, queue: Queue, partitions: Iterable[bytes]) -> list[Row]:
    """Partition, consumer, rank and row position of everything in flight there."""
    return await work.session.fetch(
        "partitions_in_flight", queue=queue.number, partitions=sorted(partitions)
    )


# -- claim order ---------------------------------------------------------------------
# Within a partition that is strictly publish order, regardless of priority. Partitions compete
# with their next deliveries: priority descending, then publish order (C4). The candidates of all
# partitions are read without locks, in one query. The chosen ones are then locked, and if one has
# changed, the search starts again. The queue is locked, so no other claim interferes. Only
# deliveries that a publish, a replay or a settle adds concurrently can be missed, and a claim need
# not see those yet.

#: Segments that are read first per partition, if it may hand out several deliveries.
_SEGMENTS: Final = 4
#: How often one claim searches again. If deliveries expired or failed, waiting consumers are
#: notified and claim again.
_LOOKS: Final = 50
#: ``partition_heads`` encodes a position and a rank as one number.
_RANKS: Final = 16


class _Pick(NamedTuple):
    """A candidate delivery, ordered as partitions compete, and its group."""

    rank: int
    message: MessageId
    phase: int
    row_key: int

    @property
    def group(self) -> tuple[int, int, int]:
        """The key of its group in the queue."""
        return self.phase, self.rank, self.row_key


class _First(NamedTuple):
    """The next delivery of a partition, and how many it may hand out."""

    pick: _Pick
    partition: bytes
    remaining: int


async def hand_out(core: Core, work: Work, queue: Queue, asked: Claim) -> list[Granted]:
    """Grant up to the limit from the consumer's partitions, in claim order."""
    for _ in range(_LOOKS):
        picks = await _choose(work, queue, asked)
        if not picks:
            break
        groups: dict[tuple[int, int, int], DeliveryGroup] = {}
        for phase in sorted({pick.phase for pick in picks}):
            row_keys = [(pick.rank, pick.row_key) for pick in picks if pick.phase == phase]
            for group in await work.lock_groups(queue.number, Phase(phase), row_keys):
                groups[phase, group.rank, int(group.first)] = group
        look_at_clock(core, work)
        expired = [group for group in groups.values() if moves.is_expired(group.record, work.now)]
        if expired:
            # The claim has expired a bounded number of groups before, so some may be left.
            for group in expired:
                moves.expire(work, group, group.members, Transition.EXPIRE)
            await work.write()
        elif not all(_is_there(groups, pick) for pick in picks):
            work.let_go(groups.values())
        elif exhausted := [p for p in picks if moves.is_exhausted(queue, groups[p.group].record)]:
            for pick in exhausted:
                moves.exhaust(work, queue, groups[pick.group], [segment_of(pick.message)[1]])
            await work.write()
        else:
            fitting = await _within_bytes(core, work, picks, groups)
            if len(fitting) < len(picks):
                work.notify(queue)  # Consumers that wait claim the rest.
            taken = [(groups[pick.group], [segment_of(pick.message)[1]]) for pick in fitting]
            return grant(core, work, queue, asked, taken)
    return []


async def _within_bytes(
    core: Core,
    work: Work,
    picks: Sequence[_Pick],
    groups: Mapping[tuple[int, int, int], DeliveryGroup],
) -> Sequence[_Pick]:
    """The first candidates, as many as one claim may read the payloads of."""
    replaced = [groups[pick.group].record.entry for pick in picks]
    entries = [
        segment_of(pick.message if entry is None else entry)
        for pick, entry in zip(picks, replaced, strict=True)
    ]
    segments = await large_segments(core, work, {number for number, _ in entries})
    if segments is None:
        return picks
    remaining = MAX_CLAIM_BYTES
    for count, (number, index) in enumerate(entries):
        # A missing segment is reported when it is read.
        metadata = segments[number].metadata if number in segments else ()
        remaining -= metadata[index].size if index < len(metadata) else 0
        if remaining < 0 and count:
            return picks[:count]
    return picks


async def _choose(work: Work, queue: Queue, asked: Claim) -> list[_Pick]:
    """The candidates to hand out, if they do not change meanwhile."""
    concurrency = queue.policy.partition_concurrency
    rows = await work.session.fetch(
        "partition_first_groups", queue=queue.number, consumer=asked.consumer
    )
    firsts: list[_First] = []
    for partition, in_flight, delayed, fresh, returned in rows:
        remaining = concurrency - int(in_flight or 0)
        waiting = [
            (*divmod(int(head), _RANKS), phase)
            for head, phase in ((fresh, Phase.FRESH), (returned, Phase.RETURNED))
            if head is not None
        ]
        if remaining <= 0 or not waiting:
            continue
        row_key, rank, phase = min(waiting)
        if concurrency == 1 and delayed is not None and int(delayed) // _RANKS < row_key:
            continue  # Strict order: a delayed delivery holds back those behind it.
        firsts.append(
            _First(_Pick(rank, MessageId(row_key), int(phase), row_key), partition, remaining)
        )
    # The best deliveries are all in these partitions: each of them precedes all other partitions.
    firsts = heapq.nsmallest(asked.limit, firsts)
    if concurrency == 1 or asked.limit == 1 or not firsts:
        return [first.pick for first in firsts]
    return await _choose_several(work, queue, firsts, asked.limit)


async def _choose_several(
    work: Work, queue: Queue, firsts: Sequence[_First], limit: int
) -> list[_Pick]:
    """The candidates, if a partition may hand out more than one."""
    partitions = sorted(first.partition for first in firsts)
    segments = _SEGMENTS
    while True:
        rows = await work.session.fetch(
            "partition_groups", queue=queue.number, partitions=partitions, most=segments
        )
        by_partition: dict[bytes, list[DeliveryGroup]] = defaultdict(list)
        for row in rows:
            by_partition[row[7]].append(DeliveryGroup.read(row))
        feeds = [
            _Feed(by_partition[first.partition], first.remaining, segments) for first in firsts
        ]
        picks = _merge(feeds, limit)
        if picks is not None:
            return picks
        segments *= 4


class _Feed:
    """The deliveries of a partition in order, as far as they were read."""

    def __init__(self, groups: Sequence[DeliveryGroup], remaining: int, segments: int) -> None:
        end = _end(groups, segments)
        known = sorted(
            (message, group.rank, int(group.phase), int(group.first))
            for group in groups
            if end is None or group.segment <= end
            for message in group.ids()
        )
        self.picks = [
            _Pick(rank, message, phase, row_key)
            for message, rank, phase, row_key in known[:remaining]
        ]
        #: Whether it may hand out more than was read.
        self.more = end is not None and len(self.picks) < remaining


def _end(groups: Iterable[DeliveryGroup], segments: int) -> int | None:
    """The segment after which groups may be missing; None if all were read."""
    of_phase: dict[Phase, set[int]] = defaultdict(set)
    for group in groups:
        of_phase[group.phase].add(group.segment)
    return min((max(read) for read in of_phase.values() if len(read) >= segments), default=None)


def _merge(feeds: Sequence[_Feed], limit: int) -> list[_Pick] | None:
    """The next deliveries of all feeds in claim order; None if more must be read."""
    heads = [(feed.picks[0], nth, 0) for nth, feed in enumerate(feeds) if feed.picks]
    heapq.heapify(heads)
    merged: list[_Pick] = []
    while heads and len(merged) < limit:
        pick, nth, at = heads[0]
        merged.append(pick)
        feed = feeds[nth]
        if at + 1 < len(feed.picks):
            heapq.heapreplace(heads, (feed.picks[at + 1], nth, at + 1))
        elif feed.more and len(merged) < limit:
            return None
        else:
            heapq.heappop(heads)
    return merged


def _is_there(groups: dict[tuple[int, int, int], DeliveryGroup], pick: _Pick) -> bool:
    """Whether the group still has the delivery."""
    group = groups.get(pick.group)
    return group is not None and segment_of(pick.message)[1] in group.members
