"""O1: a (queue, partition) has one owner per epoch, and an older epoch is fenced.

Stats are read several times in a run, and all replies must name one owner per epoch. The owner
also holds everything in flight: when a partition changes hands, the claims of its former owner
are returned. If stats name the same owner and epoch before and after a page was read, it owned
the partition all the time in between.
"""

from __future__ import annotations

from penstock.model.delivery import QueueStats, Snapshot
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.verify.browse import Place, Scan, find
from penstock.verify.counts import Picture
from penstock.verify.inspection import PAGE, RECHECKS, Inspection
from penstock.verify.store import Missing

__all__ = ["Owners"]


class Owners:
    """The check of one ordered queue; does nothing for other queues."""

    def __init__(self, work: Inspection, first: Picture) -> None:
        self._work = work
        self._name = first.info.name
        self._applies = first.info.policy.ordering is Ordering.PARTITION
        #: (partition, epoch) to its only possible owner.
        self._known: dict[tuple[str, int], str] = {}
        self._now: dict[str, str | None] = {}
        self.note(first.queue)

    def note(self, stats: QueueStats) -> None:
        """Compare the owners in stats with all earlier replies."""
        if not self._applies:
            return
        names = [item.partition for item in stats.partitions]
        self._work.ledger.examined("O1", len(names))
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            self._broken(f"partition {twice[0]!r} is listed more than once")
        for item in stats.partitions:
            if item.owner is None:
                continue
            first = self._known.setdefault((item.partition, item.epoch), item.owner)
            if first != item.owner:
                self._broken(
                    f"partition {item.partition!r} has the owners {first!r} and {item.owner!r} in "
                    f"epoch {item.epoch}"
                )
        self._now = {item.partition: item.owner for item in stats.partitions}

    async def check(self, scan: Scan, shown: Snapshot) -> None:
        """Check that the partition's owner holds a delivery in flight."""
        if not self._applies or scan.place != Place(self._name, State.IN_FLIGHT):
            return
        if self._now.get(shown.message.partition_key or "") == shown.consumer:
            return
        if self._work.may_confirm("O1", self._name):
            await self._confirm(scan, shown)

    async def _confirm(self, scan: Scan, shown: Snapshot) -> None:
        work, partition = self._work, shown.message.partition_key or ""
        wrong = 0
        for _ in range(RECHECKS):
            before = await self._ask(partition)
            held = await find(work.store, scan, shown.message, PAGE)
            after = await self._ask(partition)
            if isinstance(held, Missing):
                return
            if before != after:
                continue
            if before is not None and before[0] == held.consumer:
                return
            wrong += 1
        if wrong > 1:
            detail = f"{shown.consumer!r} holds it without owning partition {partition!r}"
            work.ledger.violation("O1", detail, queue=self._name, message_id=shown.message.id)
        else:
            work.ledger.unresolved("O1")

    async def _ask(self, partition: str) -> tuple[str | None, int] | None:
        """The partition's current owner and epoch."""
        stats = await self._work.look(self._work.store.stats(self._name))
        if isinstance(stats, Missing):
            return None
        self.note(stats)
        for item in stats.partitions:
            if item.partition == partition:
                return item.owner, item.epoch
        return None

    def _broken(self, detail: str) -> None:
        self._work.ledger.violation("O1", detail, queue=self._name)
