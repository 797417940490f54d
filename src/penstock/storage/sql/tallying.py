"""Tallying: consolidates the counters of queues that have many rows (Q2).

Every transaction counts in its own rows, and readers sum them up. The sweep locks rows, deletes
them and inserts their sum in one commit, so a reader sees either the rows or their sum, plus the
rows added meanwhile. Zero sums are written too: pollers detect activity by the newest row id,
which must never decrease. The counts of partitions are added to one row per partition, which is
deleted when the partition has nothing left. Only queues used since the last check are examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row
from penstock.storage.sql.work import Work

__all__ = ["Tallying"]

#: Rows per counter that are left alone: summing this few costs next to nothing.
_MANY: Final = 50
#: Queues that one sweep examines; the next sweeps examine the others.
_MAX_QUEUES: Final = 50
#: Rows that one transaction consolidates at most.
_MAX_ROWS: Final = 5_000
#: Transactions per sweep and queue, so that it ends however fast rows are added.
_MAX_STEPS: Final = 50


class Tallying:
    """A server's memory of the rows it has seen."""

    def __init__(self) -> None:
        #: By queue, the newest row ids of the counters that show whether it was used.
        self._seen: dict[int, tuple[int | None, ...]] = {}

    async def sweep(self, core: Core) -> None:
        """Consolidate counters that have many rows."""
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
        """Queues that were used since the last check, and their tenants."""
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
        # In a fixed order, so that concurrent servers do not deadlock.
        await work.session.write(
            "add_to_partitions",
            [(queue, partition, sums[partition]) for partition in partitions if sums[partition]],
        )
        await work.session.run("remove_ended_partitions", queue=queue, partitions=partitions)
        return len(rows) == _MAX_ROWS

    await _repeat(core, tenant, act)


async def _repeat(core: Core, tenant: str, act: Callable[[Work], Awaitable[bool]]) -> None:
    """Repeat while there is more, up to a bound."""
    for _ in range(_MAX_STEPS):
        if not await core.transact(tenant, act):
            return
