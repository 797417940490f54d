"""Cancel: remove the deliveries of one message, in any state, in one commit (S1, S3).

A claim, a settle or a sweep of any server may move a delivery to another row while this
transaction waits for the lock of the old one. So the rows are read again once they are locked, and
the transaction is retried if a delivery is in a row that it does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.filters import parse
from penstock.model.delivery import CancelReply
from penstock.model.message import Message, MessageId
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import RetryTransaction
from penstock.storage.sql.deliveries import DeliveryGroup, Phase, is_dead, segment_of
from penstock.storage.sql.group_cursor import Item, hold
from penstock.storage.sql.messages import deliveries_of, newest_entry
from penstock.storage.sql.work import Work

__all__ = ["cancel"]

_DEAD: Final = tuple(phase for phase in Phase if is_dead(phase))


async def cancel(core: Core, tenant: str, id: MessageId, queue: str | None) -> CancelReply:
    """Remove the deliveries of a message from one queue, or from all queues."""

    async def act(work: Work) -> CancelReply:
        queues = dict(work.tenant.numbered)
        phases = tuple(Phase)
        if queue is not None:
            found, dead = work.tenant.find(queue)
            queues = {found.number: found}
            phases = _DEAD if dead else phases
        message, _ = await newest_entry(work.session, work.tenant, id)
        # Before the deliveries: what a cursor has passed is among them.
        pending = [] if phases == _DEAD else await _pending(work, queues.values(), message)
        held = await _hold(work, id, queues, phases)
        for group in held.values():
            moves.remove(work, group, [segment_of(id)[1]])
        names = sorted(queues[number].name for number in held)
        return CancelReply(len(names), tuple(names), tuple(sorted(pending)))

    return await core.transact(tenant, act)


async def _pending(work: Work, queues: Iterable[Queue], message: Message) -> list[str]:
    """The queues that have not routed the message yet and will take it."""
    names: list[str] = []
    for queue in queues:
        if queue.cursor is None or not parse(queue.policy.filter).matches(message):
            continue
        for (cursor,) in await work.session.fetch("read_cursor", queue=queue.number):
            if cursor is not None and cursor <= message.offset:
                names.append(queue.name)
    return names


async def _hold(
    work: Work, id: MessageId, queues: Mapping[int, Queue], phases: Sequence[Phase]
) -> dict[int, DeliveryGroup]:
    """Lock the groups of the message's deliveries; returns them by queue."""
    held: dict[int, DeliveryGroup] = {}
    for number, group in sorted((await _groups(work, id, queues, phases)).items()):
        locked = await hold(work, [Item.of(group, id)], phases)
        if id in locked:
            held[number] = locked[id].group
    if (await _groups(work, id, queues, phases)).keys() - held.keys():
        raise RetryTransaction("a delivery was moved before it was locked")
    return held


async def _groups(
    work: Work, id: MessageId, queues: Mapping[int, Queue], phases: Sequence[Phase]
) -> dict[int, DeliveryGroup]:
    """The groups of the message's deliveries, by queue."""
    return {
        queue.number: group
        for queue, group in await deliveries_of(work.session, work.tenant, id)
        if queue.number in queues and group.phase in phases
    }
