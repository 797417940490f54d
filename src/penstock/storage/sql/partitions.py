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

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.errors import Conflict, UnknownQueue
from penstock.model.delivery import Delivery, Ownership, PartitionStats
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.model.message import Offset
from penstock.model.states import Transition
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.copy_sizes import fitting
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row, Session
from penstock.storage.sql.deliveries import Phase
from penstock.storage.sql.granting import Claim, deliver
from penstock.storage.sql.partition_order import hand_out
from penstock.storage.sql.work import Work

__all__ = ["claim", "drop_dead_consumers", "join", "leave", "lock", "partition_stats"]


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
    own = await _heartbeat(core, work, queue, asked.consumer)
    if own is None:
        work.notify(queue)  # Waiting consumers claim again.
    if not own or queue.paused(dead=False):
        return []
    granted = await hand_out(core, work, queue, asked)
    (deliveries,) = await deliver(core, work, queue, [granted], dead=False)
    if granted:
        await work.write()
    return deliveries


async def join(core: Core, tenant: str, queue: str, consumer: str) -> Ownership:
    """Renew the consumer's lease, and adjust its partitions to its share."""

    async def act(work: Work) -> Ownership | None:
        found, dead = work.tenant.find(queue)
        if dead or not found.ordered:
            raise Conflict(f"Queue {queue!r} is not ordered by partition.", field="queue")
        await lock(work, found)
        own = await _heartbeat(core, work, found, consumer)
        if own is None:
            return None
        return Ownership(
            consumer=consumer,
            partitions={key.decode(): epoch for key, epoch in sorted(own.items())},
            deadline=work.now + CONSUMER_LEASE_MS,
        )

    while (ownership := await core.transact(tenant, act)) is None:
        pass
    return ownership


async def leave(core: Core, tenant: str, queue: str, consumer: str) -> None:
    """Give everything back immediately."""

    async def act(work: Work) -> bool:
        found, dead = work.tenant.find(queue)
        if dead or not found.ordered:
            return True
        await lock(work, found)
        return await _drop(core, work, found, [consumer], Transition.RELEASE)

    while not await core.transact(tenant, act):
        pass


async def drop_dead_consumers(core: Core, work: Work, queue: Queue) -> bool:
    """Remove consumers whose heartbeat deadline has passed; False if the caller must call again.

    Locks the queue if there are any, so this must precede every other lock.
    """
    if not _dead(await _consumers(work, queue), work.now):
        return True
    await lock(work, queue)
    dead = _dead(await _consumers(work, queue), work.now)
    return await _drop(core, work, queue, dead, Transition.LAPSE)


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


async def _heartbeat(
    core: Core, work: Work, queue: Queue, consumer: str
) -> dict[bytes, int] | None:
    """Renew, release the excess, take free partitions; returns the consumer's partitions.

    None if the transaction is full of dead-letter copies: another one has to continue.
    """
    consumers = await _consumers(work, queue)
    dead = _dead(consumers, work.now)
    if dead:
        if not await _drop(core, work, queue, dead, Transition.LAPSE):
            return None
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
        if not await _free(core, work, queue, excess, Transition.RELEASE):
            return None
        await work.write()
        for partition in excess:
            del own[partition]
    elif len(own) < share and free:
        taken = await _take(core, work, queue, consumer, free[: share - len(own)])
        if taken is None:
            return None
        own |= taken
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


async def _take(
    core: Core, work: Work, queue: Queue, consumer: str, free: Sequence[bytes]
) -> dict[bytes, int] | None:
    """Make the consumer the owner of these partitions, each in a new epoch.

    None if the claims of others there are not all ended yet.
    """
    back = await _take_back(core, work, queue, free, Transition.RELEASE, unless=consumer)
    if not back.all:
        return None
    if back.any:
        await work.write()
    epoch = await lock(work, queue)
    taken = {partition: epoch + nth for nth, partition in enumerate(free, 1)}
    await work.session.write(
        "put_owners", [(queue.number, key, consumer, number) for key, number in taken.items()]
    )
    await work.session.run("raise_epoch", queue=queue.number, epoch=epoch + len(taken))
    work.notify(queue)
    return taken


async def _drop(
    core: Core, work: Work, queue: Queue, consumers: Sequence[str], transition: Transition
) -> bool:
    """Remove these consumers and all their partitions; False if the caller must call again."""
    if not consumers:
        return True
    rows = await work.session.fetch(
        "owned_partitions", queue=queue.number, consumers=list(consumers)
    )
    if not await _free(core, work, queue, [partition for (partition,) in rows], transition):
        return False
    await work.session.run("drop_consumers", queue=queue.number, names=list(consumers))
    # The share of the others is larger now, even if there was nothing to free.
    work.notify(queue)
    return True


async def _free(
    core: Core, work: Work, queue: Queue, partitions: Sequence[bytes], transition: Transition
) -> bool:
    """Take back the deliveries in flight of these partitions, and remove their owners.

    False if the owners keep them, because the transaction is full of dead-letter copies.
    """
    if not partitions:
        return True
    if not (await _take_back(core, work, queue, partitions, transition)).all:
        return False
    await work.session.run("release_owners", queue=queue.number, partitions=list(partitions))
    work.notify(queue)
    return True


class _TakenBack(NamedTuple):
    """Whether claims were ended, and whether those were all."""

    any: bool
    all: bool


async def _take_back(
    core: Core,
    work: Work,
    queue: Queue,
    partitions: Sequence[bytes],
    transition: Transition,
    *,
    unless: str | None = None,
) -> _TakenBack:
    """End the claims in these partitions except one consumer's.

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
            return _TakenBack(bool(held), all=True)
        groups = await work.lock_groups(queue.number, Phase.IN_FLIGHT, missing)
        async for group in fitting(core, work, queue, groups):
            assert group.row_key is not None
            held.add((group.rank, group.row_key))
            moves.give_back(work, queue, group, group.members, transition)
        if work.copies.is_full:
            return _TakenBack(bool(held), all=False)


async def _in_flight(work: Work, queue: Queue, partitions: Iterable[bytes]) -> list[Row]:
    """Partition, consumer, rank and row position of everything in flight there."""
    return await work.session.fetch(
        "partitions_in_flight", queue=queue.number, partitions=sorted(partitions)
    )
