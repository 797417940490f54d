"""Compaction: merges rows of counters (Q2), and backfills the partitions of a queue (O1).

Every transaction counts in its own rows, and readers sum them up. The sweep locks rows, deletes
them and inserts their sum in one commit, so a reader sees either the rows or their sum, plus the
rows added meanwhile. Zero sums are written too: pollers detect activity by the newest row id,
which must never decrease. The counts of partitions are added to one row per partition, which is
deleted when the partition has nothing left. Only queues used since the last check are examined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.errors import StoreCorrupt, UnknownQueue
from penstock.model.message import Message
from penstock.model.states import Transition
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row
from penstock.storage.sql.deliveries import LIVE, DeliveryGroup, Phase, segment_of
from penstock.storage.sql.work import Work

__all__ = [
    "UNKNOWN",
    "CounterCompaction",
    "Routed",
    "backfill",
    "begin",
    "give_partitions",
    "is_stray",
    "lock",
]

#: Rows per counter that are left alone: summing this few costs next to nothing.
_MANY: Final = 50
#: Queues that one sweep examines; the next sweeps examine the others.
_MAX_QUEUES: Final = 50
#: Rows that one transaction consolidates at most.
_MAX_ROWS: Final = 5_000
#: Transactions per sweep and queue, so that it ends however fast rows are added.
_MAX_STEPS: Final = 50


class CounterCompaction:
    """A server's memory of the rows it has seen."""

    def __init__(self) -> None:
        #: By queue, the newest row ids of the counters that show whether it was used.
        self._seen: dict[int, tuple[int | None, ...]] = {}

    async def sweep(self, core: Core) -> None:
        """Consolidate counters that have many rows."""
        newest = await core.fetch("newest_tallies")
        tenants = self._used(newest)
        if not tenants:
            return
        many = await core.fetch("tally_sizes", queues=sorted(tenants), most=_MANY)
        kinds: dict[int, list[int]] = {}
        for queue, kind in sorted(map(tuple, many)):
            kinds.setdefault(queue, []).append(kind)
        for queue, those in kinds.items():
            await _put_together(core, tenants[queue], queue, those)
        many = await core.fetch("partition_tally_sizes", queues=sorted(tenants), most=_MANY)
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


# -- partitions of a queue that became ordered ---------------------------------------
# The ordering of a queue can change only while nothing waits in it. But a running publish may still
# use the old catalog and add deliveries without a partition, which claims of an ordered queue would
# never find (C4, C5). So a queue that becomes ordered is scanned twice: once immediately, and once
# when no publish is open that may have begun before the change. Those publishes append above the
# end that was settled then, so only that part is scanned. A queue that is no longer ordered ignores
# partitions, so nothing has to be done.

#: Instead of a segment: the publishes that may not know of the change are not determined yet.
UNKNOWN: Final = -1
#: Segments that are backfilled in one transaction.
_MAX_SEGMENTS: Final = 100


class Routed(NamedTuple):
    """The routing state of a queue; see the columns of the same names."""

    cursor: int | None
    joining: int | None
    closing: int | None

    @property
    def needs_backfill(self) -> bool:
        """Whether the queue is caught up but needs a backfill."""
        return self.cursor is None and self.joining is not None


async def lock(work: Work, queue: Queue) -> Routed:
    """Lock the queue against other routers and replays; returns its routing state."""
    rows = await work.session.fetch("lock_queue", queue=queue.number)
    if not rows:
        raise UnknownQueue(f"There is no queue {queue.name!r}.", field="queue")
    cursor, joining, closing, _ = rows[0]
    return Routed(cursor, joining, closing)


async def begin(work: Work, queue: Queue, routed: Routed, settled: int, *, ordered: bool) -> None:
    """Record that this transaction changes the ordering of the queue, which must be locked.

    The caller must read ``settled`` before it locks the queue.
    """
    if routed.cursor is None:
        # Strays of an earlier change are above what is settled by now, too.
        now = Routed(None, UNKNOWN, settled + 1) if ordered else Routed(None, None, None)
    elif routed.joining is None or not ordered:
        return  # Publishes add nothing to the queue, or nothing that would be wrong.
    else:
        # The router finds the deliveries of publishes that do not know; it must wait for them.
        now = Routed(routed.cursor, UNKNOWN, None)
    await work.session.run("move_cursor", queue=queue.number, **now._asdict())


async def backfill(core: Core, tenant: str, name: str) -> None:
    """Assign partitions to the existing deliveries that have none."""
    while await _backfill_some(core, tenant, name):
        pass


async def _backfill_some(core: Core, tenant: str, name: str) -> bool:
    """Backfill some segments; returns whether to continue."""
    version = (await core.catalog.tenant(tenant)).version
    before, after = await core.stable(), await core.stable()

    async def act(work: Work) -> bool:
        queue = work.tenant.find_own(name)
        routed = await lock(work, queue)
        if not routed.needs_backfill:
            return False
        if work.tenant.version != version:
            # The ordering may have changed since ``stable`` was read.
            return True
        # Read after the change: a publish that does not know of it began at or below this.
        began = before.given if routed.joining == UNKNOWN else routed.joining
        assert began is not None
        ended = after.oldest is None or after.oldest > began
        if not ended and routed.joining != UNKNOWN:
            return False
        rows = await work.session.fetch(
            "stray_segments", queue=queue.number, first=routed.closing, most=_MAX_SEGMENTS
        )
        if rows:
            # Another transaction may have moved one before it was locked, so search again.
            await give_partitions(core, work, queue, [segment for (segment,) in rows])
            return True
        now = Routed(None, None, None) if ended else routed._replace(joining=began)
        await work.session.run("move_cursor", queue=queue.number, **now._asdict())
        return False

    return await core.transact(tenant, act)


def is_stray(row: Row) -> bool:
    """Whether a group of an ordered queue is live but has no partition."""
    return row[1] in LIVE and row[7] is None


async def give_partitions(core: Core, work: Work, queue: Queue, segments: Iterable[int]) -> None:
    """Assign partitions to the queue's deliveries in these segments that have none."""
    rows = await work.session.fetch(
        "lock_segment_groups",
        queues=[queue.number],
        segments=sorted(segments),
        phases=[int(phase) for phase in LIVE],
    )
    strays = work.hold_all(row for row in rows if is_stray(row))
    messages = await core.segments.messages(
        work.session,
        work.tenant.number,
        [group.record.entry or message for group in strays for message in group.ids()],
    )
    for group in strays:
        for partition, members in sorted(_partitions(group, messages).items()):
            record = replace(group.record, partition=partition)
            if group.phase is Phase.IN_FLIGHT:
                # A claim with an older catalog handed it out: no consumer owned the partition (O1).
                moves.give_back(work, queue, group, members, Transition.RELEASE, record=record)
            else:
                work.move(group, members, group.phase, record)


def _partitions(group: DeliveryGroup, messages: dict[int, Message]) -> dict[str, list[int]]:
    """The members of a group by partition."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in group.ids():
        known = messages.get(group.record.entry or message)
        if known is None:
            raise StoreCorrupt(f"The entry of message {message} is missing from the log.")
        found[known.partition_key or ""].append(segment_of(message)[1])
    return found
