"""Stats: their counts, watermark and lag equal a full scan (Q2), and partitions have owners (O1).

Within one reply of stats the sums must agree: consumers with what is in flight, partitions
with the depth. For the comparison with a scan, stats are read before and after it. Only if
both are equal, including grants and acks, did nothing move, and the scan must equal them. A
scan that differs is repeated, and has to differ again. A queue that always moves during a
scan is not checked, and the report says so.

O1: a partition has one owner per epoch, and an older epoch is fenced. All replies of stats in a
run must name one owner per epoch. The owner also holds everything in flight: when a partition
changes hands, the claims of its former owner are returned. If stats name the same owner and epoch
before and after a page was read, it owned the partition all the time in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.model.delivery import QueueStats, Snapshot
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.message import Offset
from penstock.model.queue import Ordering, QueueInfo
from penstock.model.states import LIVE, State
from penstock.verify.browse import Place, Scan, browse, find, places_of
from penstock.verify.inspection import MOVED, RECHECKS, Inspection, Missing

__all__ = ["Owners", "Picture", "Tally", "check_counts", "take_picture"]

_NO_STATS: Final = QueueStats(in_flight_by_consumer={}, watermark=Offset(-1), lag=0)


class Picture(Struct, frozen=True):
    """The statistics of a queue and its dead letters, at about one moment."""

    info: QueueInfo
    queue: QueueStats
    dead: QueueStats
    log_end: int

    @property
    def deliveries(self) -> int:
        """The number of deliveries, in all states."""
        return sum(stats.depth + stats.done + stats.expired for stats in (self.queue, self.dead))

    @property
    def moving(self) -> tuple[QueueStats, ...]:
        """Changes whenever a delivery moves, but not with ages and the end of the log."""
        return _moving(self.queue), _moving(self.dead)

    @property
    def ends(self) -> tuple[int | None, ...]:
        """Changes whenever the log, the watermarks or the lags move."""
        queue, dead = self.queue, self.dead
        marks = (queue.watermark, queue.lag, dead.watermark, dead.lag)
        return (self.log_end, self.info.cursor, *marks)


class Partition:
    """The counts of one partition in a scan."""

    def __init__(self) -> None:
        self.unsettled = 0
        self.in_flight = 0
        self.lowest: int | None = None


class Tally:
    """The counts of a scan."""

    def __init__(self, info: QueueInfo) -> None:
        self._ordered = info.policy.ordering is Ordering.PARTITION
        self._home = info.name
        self.counts: Counter[Place] = Counter()
        self.consumers: Counter[tuple[str, str | None]] = Counter()
        self.lowest: dict[str, int] = {}
        self.partitions: dict[str, Partition] = {}

    def see(self, place: Place, shown: Snapshot) -> None:
        """Count one delivery."""
        self.counts[place] += 1
        if place.state not in LIVE:
            return
        message_id = shown.message.id
        self.lowest[place.queue] = min(message_id, self.lowest.get(place.queue, message_id))
        if place.state is State.IN_FLIGHT:
            self.consumers[place.queue, shown.consumer] += 1
        if self._ordered and place.queue == self._home:
            name = shown.message.partition_key or ""
            partition = self.partitions.setdefault(name, Partition())
            partition.unsettled += 1
            partition.in_flight += place.state is State.IN_FLIGHT
            if partition.lowest is None or message_id < partition.lowest:
                partition.lowest = message_id


async def take_picture(work: Inspection, name: str) -> Picture | Missing:
    """The statistics of a queue and its dead letters, each checked on its own."""
    end = await work.look(work.store.log_end())
    info = await work.read(work.store.queue(name), "the queue", queue=name)
    queue = await work.read(work.store.stats(name), "the queue", queue=name)
    dead = await work.read(work.store.stats(name + DLQ_SUFFIX), "the queue", queue=name)
    if (
        isinstance(info, Missing)
        or isinstance(queue, Missing)
        or isinstance(dead, Missing)
        or isinstance(end, Missing)
    ):
        return Missing()
    for place, stats in ((name, queue), (name + DLQ_SUFFIX, dead)):
        for detail in _contradictions(info, stats, dead_letters=place != name):
            work.ledger.violation("Q2", detail, queue=place)
    return Picture(info, queue, dead, end)


async def check_counts(work: Inspection, before: Picture, tally: Tally) -> None:
    """Compare a scan with stats from before and after it, and repeat it if they differ."""
    name = before.info.name
    differences: list[str] = []
    confirmed = 0
    for attempt in range(RECHECKS + 1):
        after = await take_picture(work, name)
        if isinstance(after, Missing):
            return
        if before.moving == after.moving:
            differences = list(_differences(work, before, after, tally))
            if not differences:
                work.ledger.examined("Q2")
                return
            confirmed += 1
        if attempt < RECHECKS:
            again = await _scan(work, after.info)
            if again is None:
                return
            before, tally = after, again
    if confirmed > 1:
        work.ledger.examined("Q2")
        work.ledger.violation("Q2", "; ".join(differences), queue=name)
    else:
        work.ledger.skip("Q2", f"{name!r} was too busy to be counted")


async def _scan(work: Inspection, info: QueueInfo) -> Tally | None:
    tally = Tally(info)
    for place in places_of(info.name):
        async for turn in browse(work, place):
            if isinstance(turn.page, Missing):
                return None
            for item in turn.page.items:
                tally.see(place, item)
    return tally


def _moving(stats: QueueStats) -> QueueStats:
    return replace(
        stats,
        oldest_available_ms=None,
        watermark=_NO_STATS.watermark,
        lag=0,
        partitions=tuple(replace(item, owner=None, epoch=0) for item in stats.partitions),
    )


def _contradictions(info: QueueInfo, stats: QueueStats, *, dead_letters: bool) -> Iterator[str]:
    """Contradictions within one reply of stats."""
    held = sum(stats.in_flight_by_consumer.values())
    if held != stats.in_flight:
        yield f"{stats.in_flight} are in flight, consumers hold {held}"
    if stats.lag < stats.depth:
        yield f"the lag is {stats.lag}, and {stats.depth} are unsettled"
    if info.policy.ordering is Ordering.PARTITION and not dead_letters:
        unsettled = sum(item.unsettled for item in stats.partitions)
        in_flight = sum(item.in_flight for item in stats.partitions)
        if (unsettled, in_flight) != (stats.depth, stats.in_flight):
            yield (
                f"{stats.depth} are unsettled and {stats.in_flight} in flight, the partitions "
                f"have {unsettled} and {in_flight}"
            )


def _differences(work: Inspection, before: Picture, after: Picture, tally: Tally) -> Iterator[str]:
    name, dead = before.info.name, before.info.name + DLQ_SUFFIX
    for queue, stats in ((name, before.queue), (dead, before.dead)):
        for state in State:
            if state is not State.FAILED:
                found, said = tally.counts[Place(queue, state)], getattr(stats, state.value)
                if found != said:
                    yield f"stats say {said} {Place(queue, state)}, a scan finds {found}"
        for consumer, said in stats.in_flight_by_consumer.items():
            found = tally.consumers[queue, consumer]
            if found != said:
                yield f"stats say that {consumer!r} holds {said} in {queue!r}, a scan {found}"
    if before.queue.failed != before.dead.depth:
        yield f"{before.queue.failed} failed, and the dead letters are {before.dead.depth}"
    yield from _partition_differences(before, tally)
    if before.ends == after.ends:
        yield from _end_differences(work, before, tally)


def _partition_differences(before: Picture, tally: Tally) -> Iterator[str]:
    said = {item.partition: item for item in before.queue.partitions}
    for name in sorted(said.keys() | tally.partitions.keys()):
        stats, found = said.get(name), tally.partitions.get(name, Partition())
        counts = (0, 0) if stats is None else (stats.unsettled, stats.in_flight)
        if counts != (found.unsettled, found.in_flight):
            yield (
                f"partition {name!r} has {counts[0]} unsettled and {counts[1]} in flight, a scan "
                f"finds {found.unsettled} and {found.in_flight}"
            )
        elif stats is not None and found.lowest is not None and stats.watermark != found.lowest - 1:
            yield (
                f"the watermark of partition {name!r} is {stats.watermark}, a scan finds "
                f"{found.lowest - 1}"
            )


def _end_differences(work: Inspection, before: Picture, tally: Tally) -> Iterator[str]:
    """The watermark and the lag."""
    info, end = before.info, before.log_end
    for queue, stats, cursor in (
        (info.name, before.queue, info.cursor),
        (info.name + DLQ_SUFFIX, before.dead, None),
    ):
        lowest = min(tally.lowest.get(queue, end), end if cursor is None else cursor)
        if stats.watermark != lowest - 1:
            yield f"the watermark of {queue!r} is {stats.watermark}, a scan finds {lowest - 1}"
        unrouted = _unrouted(work, cursor, end)
        if unrouted is not None and stats.lag != stats.depth + unrouted:
            yield f"the lag of {queue!r} is {stats.lag}, a scan finds {stats.depth + unrouted}"


def _unrouted(work: Inspection, cursor: int | None, end: int) -> int | None:
    """How many entries are still to be routed, if the log was read to the same end."""
    if cursor is None:
        return 0
    if end != work.index.end or work.index.holes:
        return None
    return len(work.index) - work.index.position_of(cursor)


# -- owners -----------------------------------------------------------------------------------


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

        async def check() -> str | None:
            before = await self._ask(partition)
            held = await find(work, scan, shown.message)
            after = await self._ask(partition)
            if isinstance(held, Missing):
                return None
            if before != after:
                return MOVED
            if before is not None and before[0] == held.consumer:
                return None
            return f"{shown.consumer!r} holds it without owning partition {partition!r}"

        await work.confirm("O1", check, queue=self._name, message_id=shown.message.id)

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
