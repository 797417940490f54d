"""Tallying: the numbers of queues, added up again where they lie in many rows (Q2).

Every transaction counts in rows of its own, and whoever asks adds them up. Here they are put
together: the rows are locked, deleted and replaced by their sum in one commit, so a reader sees
them all or their sum, and what is counted meanwhile stands beside it. A sum of nothing is a row
too: whoever tells by the newest row whether a queue was used never sees an older one than before.
What partitions have is added to a row of each, which goes when the partition has nothing left.
Only queues that were used since the last look are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row
from penstock.storage.sql.work import Work

__all__ = ["Tallying"]

#: More rows of one number than this are put together: adding up so few costs next to nothing.
_MANY: Final = 50
#: Queues that one sweep looks at; the others are looked at by the next ones.
_MAX_QUEUES: Final = 50
#: Rows that one transaction puts together.
_MAX_ROWS: Final = 5_000
#: Transactions of one sweep, so that it goes on however fast the rows come.
_MAX_STEPS: Final = 50


class Tallying:
    """What a server remembers of the rows it has seen."""

    def __init__(self) -> None:
        #: By queue, the newest rows of those numbers that tell whether it was used.
        self._seen: dict[int, tuple[int | None, ...]] = {}

    async def sweep(self, core: Core) -> None:
        """Put together what lies in many rows."""
        newest = await core.plainly(lambda session: session.fetch("newest_tallies"))
        tenants = self._used(newest)
        if not tenants:
            return
        many = await core.plainly(
            lambda session: session.fetch("tally_sizes", queues=sorted(tenants), most=_MANY)
        )
        kinds: dict[int, list[int]] = {}
        for queue, kind in sorted(map(tuple, many)):
            kinds.setdefault(queue, []).append(kind)
        for queue, those in kinds.items():
            await _put_together(core, tenants[queue], queue, those)
        many = await core.plainly(
            lambda session: session.fetch(
                "partition_tally_sizes", queues=sorted(tenants), most=_MANY
            )
        )
        for (queue,) in many:
            await _add_to_partitions(core, tenants[queue], queue)

    def _used(self, newest: Sequence[Row]) -> dict[int, str]:
        """Queues that were used since they were looked at, and their tenants."""
        seen = {queue: self._seen[queue] for _, queue, *_ in newest if queue in self._seen}
        used: dict[int, str] = {}
        for tenant, queue, *numbers in newest:
            if seen.get(queue) != tuple(numbers):
                used[queue] = tenant
                seen[queue] = tuple(numbers)
            if len(used) == _MAX_QUEUES:
                break
        self._seen = seen
        return used


async def _put_together(core: Core, tenant: str, queue: int, kinds: Sequence[int]) -> None:
    async def act(work: Work) -> bool:
        full = False
        sums: list[tuple[int, int, int]] = []
        for kind in kinds:
            rows = await work.session.fetch(
                "lock_tallies", queue=queue, kind=kind, most=_MAX_ROWS // len(kinds)
            )
            if len(rows) < 2:
                continue
            numbers = [number for number, _ in rows]
            await work.session.run("remove_tallies", queue=queue, kind=kind, numbers=numbers)
            sums.append((queue, kind, sum(int(delta) for _, delta in rows)))
            full = full or len(rows) == _MAX_ROWS // len(kinds)
        await work.session.change(work.tenant.number, (), (), (), sums)
        return full

    await _repeat(core, tenant, act)


async def _add_to_partitions(core: Core, tenant: str, queue: int) -> None:
    async def act(work: Work) -> bool:
        rows = await work.session.fetch("lock_partition_tallies", queue=queue, most=_MAX_ROWS)
        if not rows:
            return False
        sums: Counter[bytes] = Counter()
        for _, partition, delta in rows:
            sums[partition] += int(delta)
        partitions = sorted(sums)
        numbers = [number for number, *_ in rows]
        await work.session.run("remove_partition_tallies", queue=queue, numbers=numbers)
        # In one order, so that servers that do this at the same time do not wait in a circle.
        await work.session.write(
            "add_to_partitions",
            [(queue, partition, sums[partition]) for partition in partitions if sums[partition]],
        )
        await work.session.run("remove_ended_partitions", queue=queue, partitions=partitions)
        return len(rows) == _MAX_ROWS

    await _repeat(core, tenant, act)


async def _repeat(core: Core, tenant: str, act: Callable[[Work], Awaitable[bool]]) -> None:
    """Go on for as long as there is more, within reason."""
    for _ in range(_MAX_STEPS):
        if not await core.transact(tenant, act):
            return
