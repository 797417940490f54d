"""join and leave: consumers of an ordered queue get their share of its partitions (O1).

Both move a bounded number of partitions per turn of the event loop, and reply when all are moved.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import Conflict
from penstock.model.delivery import Ownership
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.dead_letter_copies import CopyingVerbs
from penstock.storage.keyvalue.guarded import changing
from penstock.storage.keyvalue.partitions import Partitions
from penstock.storage.keyvalue.passing_time import heartbeat
from penstock.storage.keyvalue.queue import Queue

__all__ = ["MembershipVerbs"]

#: Partitions listed per turn: a millisecond or two. A longer reply has the state of each partition
#: at the time of its turn.
_NAMES: Final = 250


class MembershipVerbs(CopyingVerbs):
    """The verbs of the contract that are about consumers."""

    _core: Core

    @changing
    async def join(self, tenant: str, queue: str, consumer: str) -> Ownership:
        now = self._begin()
        while True:
            state = self._core.tenant(tenant).queue(queue)
            partitions = _partitions(state)
            async with self._copies_appended():
                more = heartbeat(state, partitions, consumer, now)
            if not more:
                break
            await self._next_committed_slice(tenant)
            now = self.clock.now()
        deadline = partitions.consumers[consumer]
        owned: dict[str, int] = {}
        last: str | None = None
        while found := partitions.owned_by(consumer, last, _NAMES):
            owned.update((item.name, item.epoch) for item in found)
            last = found[-1].name
            if len(found) < _NAMES:
                break
            await self._next_slice(tenant)
        await self._committer.commit()
        return Ownership(consumer, owned, deadline)

    @changing
    async def leave(self, tenant: str, queue: str, consumer: str) -> None:
        now = self._begin()
        state = self._core.tenant(tenant).queue(queue)
        partitions = state.partitions
        if partitions is None:
            return  # The queue is not ordered, so the consumer has nothing to give back.
        partitions.leave(consumer)
        while await self._free_departed(state, partitions, now):
            await self._next_committed_slice(tenant)
            if state.deleted or state.partitions is not partitions:
                break  # Its partitions are gone with the queue.
        await self._committer.commit()


def _partitions(queue: Queue) -> Partitions:
    if queue.partitions is None:
        raise Conflict(
            f"Queue {queue.name!r} is not ordered by partition; only ordered queues can be joined.",
            field="queue",
        )
    return queue.partitions
