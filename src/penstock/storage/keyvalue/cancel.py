"""Cancel: remove the deliveries of one message, in any state, in one commit (S1, S3).

All deliveries are found before the first one is removed, so an unreadable record (X1) changes
nothing. A tenant may have thousands of queues, so both run in steps, for ``LongChanges``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from penstock.errors import UnknownMessage
from penstock.model.delivery import CancelReply
from penstock.model.message import Message, MessageId
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.guarded import Guarded, changing
from penstock.storage.keyvalue.moves import (
    drop_available,
    drop_delayed,
    drop_done,
    drop_expired,
    drop_in_flight,
)
from penstock.storage.keyvalue.queue import Queue

__all__ = ["CancelVerbs"]

#: Queues that are searched, or changed, per step: ten reads each.
_QUEUES: Final = 64


class CancelVerbs(Guarded):
    """The ``cancel`` verb of the contract."""

    _core: Core

    @changing
    async def cancel(
        self, tenant: str, message_id: MessageId, queue: str | None = None
    ) -> CancelReply:
        self._begin()
        owner = self._core.tenant(tenant)
        if queue is None:
            chosen: Sequence[Queue] = [owner.queues[name] for name in sorted(owner.queues)]
        else:
            chosen = [owner.queue(queue)]
        found = self._core.log.find(tenant, message_id)
        if found is None:
            raise UnknownMessage(f"There is no message {message_id}.", field="id")
        work = _Cancel(found[0], chosen)
        steps = work.carry_out()
        if not self._begin_change(steps, work):
            await self._finish_change(steps, work)
        await self._committer.commit()
        return work.reply


class _Cancel:
    """One call, in steps. No other verb runs between them."""

    def __init__(self, message: Message, queues: Sequence[Queue]) -> None:
        self._message = message
        self._queues = queues
        self.is_half_done = False
        #: The reply, set by the last step.
        self.reply: CancelReply

    def carry_out(self) -> Iterator[None]:
        """Find the deliveries, then remove them."""
        message = self._message
        removals: dict[str, Callable[[], None]] = {}
        pending: list[str] = []
        for position, queue in enumerate(self._queues, 1):
            removal = _find(queue, message)
            if removal is not None:
                removals[queue.home.name] = removal
            # A dead-letter queue has no cursor: nothing is routed to it.
            behind = queue.cursor is not None and queue.cursor <= message.offset
            if behind and queue.filter.matches(message):
                pending.append(queue.name)
            if not position % _QUEUES:
                yield
        self.is_half_done = bool(removals)
        for position, removal in enumerate(removals.values(), 1):
            removal()
            if not position % _QUEUES:
                yield
        self.is_half_done = False
        self.reply = CancelReply(len(removals), tuple(removals), tuple(pending))


def _find(queue: Queue, message: Message) -> Callable[[], None] | None:
    """The function that removes the delivery from the queue or its dead letters; None if none."""
    claim_id = queue.claim_id(message.priority, message.id)
    held = queue.shelf.held(claim_id)
    if held is not None:
        return partial(drop_in_flight, queue, held)
    delayed = queue.find_delayed(claim_id)
    if delayed is not None:
        return partial(drop_delayed, queue, *delayed)
    if queue.shelf.find(claim_id) is not None:
        return partial(drop_available, queue, claim_id)
    done = queue.done.find(message.priority, message.id)
    if done is not None:
        return partial(drop_done, queue, done.claim_id, message.id)
    expired = queue.expired.find(message.priority, message.id)
    if expired is not None:
        return partial(drop_expired, queue, expired.claim_id, message.id)
    return None if queue.dead is None else _find(queue.dead, message)
