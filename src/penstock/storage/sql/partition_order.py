"""Partition order: the next deliveries of a consumer's partitions (C4).

Within a partition that is strictly publish order, regardless of priority. Partitions compete
with their next deliveries: priority descending, then publish order. The candidates of all
partitions are read without locks, in one query. The chosen ones are then locked, and if one has
changed, the search starts again. The queue is locked, so no other claim interferes. Only
deliveries that a publish, a replay or a settle adds concurrently can be missed, and a claim need
not see those yet.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.model.decisions import lease_for
from penstock.model.limits import MAX_CLAIM_BYTES
from penstock.model.message import MessageId
from penstock.model.states import Transition
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.granting import Claim, Granted, large_segments, look_at_clock
from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import Run, segment_of
from penstock.storage.sql.work import Work

__all__ = ["hand_out"]

#: Segments that are read first per partition, if it may hand out several deliveries.
_SEGMENTS: Final = 4
#: How often one claim searches again. If deliveries expired or failed, waiting consumers are
#: notified and claim again.
_LOOKS: Final = 50
#: ``partition_heads`` encodes a position and a rank as one number.
_RANKS: Final = 16


class _Pick(NamedTuple):
    """A candidate delivery, ordered as partitions compete, and its run."""

    rank: int
    message: MessageId
    phase: int
    place: int

    @property
    def run(self) -> tuple[int, int, int]:
        """The key of its run in the queue."""
        return self.phase, self.rank, self.place


class _First(NamedTuple):
    """The next delivery of a partition, and how many it may hand out."""

    pick: _Pick
    partition: bytes
    room: int


async def hand_out(core: Core, work: Work, queue: Queue, asked: Claim) -> list[Granted]:
    """Grant up to the limit from the consumer's partitions, in claim order."""
    for _ in range(_LOOKS):
        picks = await _choose(work, queue, asked)
        if not picks:
            break
        runs = await _lock(work, queue, picks)
        look_at_clock(core, work)
        expired = [run for run in runs.values() if moves.is_expired(run.life, work.now)]
        if expired:
            # The claim has expired a bounded number of runs before, so some may be left.
            for run in expired:
                moves.expire(work, run, run.members, Transition.EXPIRE)
            await work.write()
        elif not all(_is_there(runs, pick) for pick in picks):
            work.let_go(runs.values())
        elif exhausted := [p for p in picks if moves.is_exhausted(queue, runs[p.run].life)]:
            for pick in exhausted:
                moves.exhaust(work, queue, runs[pick.run], [segment_of(pick.message)[1]])
            await work.write()
        else:
            fitting = await _within_bytes(core, work, picks, runs)
            if len(fitting) < len(picks):
                work.tell(queue)  # Consumers that wait claim the rest.
            return _grant(core, work, queue, asked, fitting, runs)
    return []


async def _within_bytes(
    core: Core, work: Work, picks: Sequence[_Pick], runs: Mapping[tuple[int, int, int], Run]
) -> Sequence[_Pick]:
    """The first candidates, as many as one claim may read the payloads of."""
    entries = [runs[pick.run].life.entry for pick in picks]
    places = [
        segment_of(pick.message if entry is None else entry)
        for pick, entry in zip(picks, entries, strict=True)
    ]
    segments = await large_segments(core, work, {number for number, _ in places})
    if segments is None:
        return picks
    room = MAX_CLAIM_BYTES
    for count, (number, index) in enumerate(places):
        # A missing segment is found out when it is read.
        heads = segments[number].heads if number in segments else ()
        room -= heads[index].size if index < len(heads) else 0
        if room < 0 and count:
            return picks[:count]
    return picks


async def _choose(work: Work, queue: Queue, asked: Claim) -> list[_Pick]:
    """The candidates to hand out, if they do not change meanwhile."""
    concurrency = queue.policy.partition_concurrency
    rows = await work.session.fetch("partition_heads", queue=queue.number, consumer=asked.consumer)
    firsts: list[_First] = []
    for partition, in_flight, delayed, fresh, returned in rows:
        room = concurrency - int(in_flight or 0)
        waiting = [
            (*divmod(int(head), _RANKS), phase)
            for head, phase in ((fresh, Phase.FRESH), (returned, Phase.RETURNED))
            if head is not None
        ]
        if room <= 0 or not waiting:
            continue
        place, rank, phase = min(waiting)
        if concurrency == 1 and delayed is not None and int(delayed) // _RANKS < place:
            continue  # Strict order: a delayed delivery holds back those behind it.
        firsts.append(_First(_Pick(rank, MessageId(place), int(phase), place), partition, room))
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
            "partition_runs", queue=queue.number, partitions=partitions, most=segments
        )
        by_partition: dict[bytes, list[Run]] = defaultdict(list)
        for row in rows:
            by_partition[row[7]].append(Run.read(row))
        feeds = [_Feed(by_partition[first.partition], first.room, segments) for first in firsts]
        picks = _merge(feeds, limit)
        if picks is not None:
            return picks
        segments *= 4


class _Feed:
    """The deliveries of a partition in order, as far as they were read."""

    def __init__(self, runs: Sequence[Run], room: int, segments: int) -> None:
        end = _end(runs, segments)
        known = sorted(
            (message, run.rank, int(run.phase), int(run.first))
            for run in runs
            if end is None or run.segment <= end
            for message in run.ids()
        )
        self.picks = [
            _Pick(rank, message, phase, place) for message, rank, phase, place in known[:room]
        ]
        #: Whether it may hand out more than was read.
        self.more = end is not None and len(self.picks) < room


def _end(runs: Iterable[Run], segments: int) -> int | None:
    """The segment after which runs may be missing; None if all were read."""
    of_phase: dict[Phase, set[int]] = defaultdict(set)
    for run in runs:
        of_phase[run.phase].add(run.segment)
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


async def _lock(
    work: Work, queue: Queue, picks: Iterable[_Pick]
) -> dict[tuple[int, int, int], Run]:
    """The locked runs of the picks, by their keys."""
    places: dict[tuple[int, int], set[int]] = defaultdict(set)
    for pick in picks:
        places[pick.phase, pick.rank].add(pick.place)
    runs: dict[tuple[int, int, int], Run] = {}
    for (phase, rank), wanted in sorted(places.items()):
        rows = await work.session.fetch(
            "lock_runs", queue=queue.number, phase=phase, rank=rank, places=sorted(wanted)
        )
        for run in work.hold_all(rows):
            runs[phase, rank, int(run.first)] = run
    return runs


def _is_there(runs: dict[tuple[int, int, int], Run], pick: _Pick) -> bool:
    """Whether the run still has the delivery."""
    run = runs.get(pick.run)
    return run is not None and segment_of(pick.message)[1] in run.members


def _grant(
    core: Core,
    work: Work,
    queue: Queue,
    asked: Claim,
    picks: Sequence[_Pick],
    runs: dict[tuple[int, int, int], Run],
) -> list[Granted]:
    """Hand out: one claim per run."""
    members: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for pick in picks:
        members[pick.run].append(segment_of(pick.message)[1])
    deadline = work.now + lease_for(queue.policy, asked.lease_ms)
    lives = {
        place: moves.grant(
            work,
            runs[place],
            taken,
            asked.consumer,
            deadline,
            core.leases.next(work.now, runs[place].life.lease),
        )
        for place, taken in members.items()
    }
    return [
        Granted(segment, (index,), pick.rank, lives[pick.run])
        for pick in picks
        for segment, index in (segment_of(pick.message),)
    ]
