"""Claim order in an ordered queue (C4).

Within a partition that is strictly publish order, regardless of priority. Partitions compete with
their next deliveries: priority descending, then publish order. After each delivery that a claim
takes or fails, the next one of its partition competes.

The candidates of all partitions are read without locks. The chosen ones are then locked, and if
one has changed, the search starts again. The queue is locked, so no other claim interferes. Only
deliveries that a publish, a replay or a settle adds concurrently can be missed, and a claim need
not see those yet.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.model.limits import MAX_CLAIM_BYTES, MAX_CLAIM_SCAN
from penstock.model.message import MessageId
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.copy_sizes import MEASURED, expire_some, measure
from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import DeliveryGroup, Phase, message_id, segment_of
from penstock.storage.sql.granting import (
    Claim,
    Granted,
    Stretch,
    grant,
    large_segments,
    look_at_clock,
)
from penstock.storage.sql.selected_partitions import count_matching, first_matching
from penstock.storage.sql.work import Work

__all__ = ["hand_out"]

#: Segments that are read first per partition, if deliveries behind its first one are needed.
_SEGMENTS: Final = 4
#: How often one claim searches again, because deliveries have changed or expired.
_LOOKS: Final = 50
#: Deliveries without attempts left that one claim fails. Waiting consumers are notified of it and
#: claim again.
_MAX_FAILED: Final = 1_000
#: ``partition_first_groups`` encodes a row key and a rank as one number.
_RANKS: Final = 16


class _Pick(NamedTuple):
    """A candidate delivery, ordered as partitions compete, and its group."""

    rank: int
    message: MessageId
    phase: int
    row_key: int
    exhausted: bool = False
    """Whether it has no attempts left: the claim fails it and hands out the next one instead."""

    @property
    def group(self) -> tuple[int, int, int]:
        """The key of its group in the queue."""
        return self.phase, self.rank, self.row_key


class _First(NamedTuple):
    """The next delivery of a partition, and how many it may hand out."""

    pick: _Pick
    partition: bytes
    remaining: int
    end: int | None
    """The message id before which they must be: in strict order, the first delayed one."""


async def hand_out(core: Core, work: Work, queue: Queue, asked: Claim) -> list[Granted]:
    """Grant up to the limit from the consumer's partitions, in claim order."""
    policy = queue.policy
    several = asked.limit > 1 and (policy.partition_concurrency > 1 or policy.partition_batch > 1)
    for _ in range(_LOOKS):
        if work.copies.is_full:
            work.notify(queue)
            break
        firsts = await _firsts(work, queue, asked.consumer)
        if asked.selector is not None:
            firsts = heapq.nsmallest(MAX_CLAIM_SCAN, firsts)
            firsts = await first_matching(core, work, queue, asked, firsts)
        if several:
            picks = await _choose_several(core, work, queue, firsts, asked)
        else:
            picks = [first.pick for first in heapq.nsmallest(asked.limit, firsts)]
        if not picks:
            break
        groups = await _lock(core, work, queue, picks)
        expired = [group for group in groups.values() if moves.is_expired(group.record, work.now)]
        if expired:
            # The claim has expired a bounded number of groups before, so some may be left.
            await expire_some(core, work, queue, expired)
        elif not all(_is_there(queue, groups, pick) for pick in picks) or (
            asked.selector is not None
            and await count_matching(core, work, asked.selector, picks, groups.values())
            < len(picks)
        ):
            several = True
            work.let_go(groups.values())
        else:
            return await _take(core, work, queue, asked, picks, groups)
    return []


async def _lock(
    core: Core, work: Work, queue: Queue, picks: Sequence[_Pick]
) -> dict[tuple[int, int, int], DeliveryGroup]:
    """Lock the groups of the candidates; some may be gone."""
    groups: dict[tuple[int, int, int], DeliveryGroup] = {}
    for phase in sorted({pick.phase for pick in picks}):
        row_keys = [(pick.rank, pick.row_key) for pick in picks if pick.phase == phase]
        for group in await work.lock_groups(queue.number, Phase(phase), row_keys):
            groups[phase, group.rank, int(group.first)] = group
    look_at_clock(core, work)
    return groups


def _is_there(
    queue: Queue, groups: Mapping[tuple[int, int, int], DeliveryGroup], pick: _Pick
) -> bool:
    """Whether the group still has the delivery, with or without attempts left as expected."""
    group = groups.get(pick.group)
    return (
        group is not None
        and segment_of(pick.message)[1] in group.members
        and moves.is_exhausted(queue, group.record) is pick.exhausted
    )


async def _take(
    core: Core,
    work: Work,
    queue: Queue,
    asked: Claim,
    picks: Sequence[_Pick],
    groups: Mapping[tuple[int, int, int], DeliveryGroup],
) -> list[Granted]:
    """Grant the candidates with attempts left, and fail the others."""
    reached = await _within_bytes(core, work, picks, groups)
    ending = [groups[pick.group] for pick in reached if pick.exhausted]
    taken: list[Stretch] = []
    failed = 0
    for pick in reached:
        group, members = groups[pick.group], [segment_of(pick.message)[1]]
        if not pick.exhausted:
            taken.append((group, members))
            continue
        if work.copies.is_full:
            break
        if not failed % MEASURED:
            await measure(core, work, queue, ending[failed : failed + MEASURED])
        moves.exhaust(work, queue, group, members)
        failed += 1
    if len(taken) + failed < len(picks):
        work.notify(queue)  # Consumers that wait claim the rest.
    granted = grant(core, work, queue, asked, taken)
    if failed:
        await work.write()
    return granted


async def _within_bytes(
    core: Core,
    work: Work,
    picks: Sequence[_Pick],
    groups: Mapping[tuple[int, int, int], DeliveryGroup],
) -> Sequence[_Pick]:
    """The first candidates, as many as one claim may read the payloads of."""
    entries: list[tuple[int, int] | None] = []
    for pick in picks:
        entry = groups[pick.group].record.entry
        entries.append(None if pick.exhausted else segment_of(entry or pick.message))
    numbers = {entry[0] for entry in entries if entry is not None}
    segments = await large_segments(core, work, numbers)
    if segments is None:
        return picks
    remaining, fitting = MAX_CLAIM_BYTES, 0
    for count, place in enumerate(entries):
        if place is None:
            continue
        number, index = place
        # A missing segment is reported when it is read.
        metadata = segments[number].metadata if number in segments else ()
        remaining -= metadata[index].size if index < len(metadata) else 0
        if remaining < 0 and fitting:
            return picks[:count]
        fitting += 1
    return picks


# -- candidates ------------------------------------------------------------------------


async def _firsts(work: Work, queue: Queue, consumer: str) -> list[_First]:
    """The next delivery of each partition of the consumer that may hand one out."""
    policy = queue.policy
    strict = policy.partition_concurrency == 1
    rows = await work.session.fetch("partition_first_groups", queue=queue.number, consumer=consumer)
    firsts: list[_First] = []
    for partition, in_flight, delayed, fresh, returned in rows:
        remaining = policy.partition_concurrency - int(in_flight or 0)
        waiting = [
            (*divmod(int(head), _RANKS), phase)
            for head, phase in ((fresh, Phase.FRESH), (returned, Phase.RETURNED))
            if head is not None
        ]
        if remaining <= 0 or not waiting:
            continue
        row_key, rank, phase = min(waiting)
        end = None
        if strict:
            remaining = policy.partition_batch
            end = None if delayed is None else int(delayed) // _RANKS
            if end is not None and end < row_key:
                continue  # A delayed delivery holds back those behind it.
        pick = _Pick(rank, MessageId(row_key), int(phase), row_key)
        firsts.append(_First(pick, partition, remaining, end))
    return firsts


async def _choose_several(
    core: Core, work: Work, queue: Queue, firsts: list[_First], asked: Claim
) -> list[_Pick]:
    """The candidates, if those behind the first one of a partition may be needed."""
    firsts.sort()
    segments, width = _SEGMENTS, asked.limit
    while firsts:
        # The others compete only if deliveries fail, because these precede them.
        chosen = firsts[:width]
        bound = firsts[width].pick if width < len(firsts) else None
        partitions = sorted(first.partition for first in chosen)
        rows = await work.session.fetch(
            "partition_groups", queue=queue.number, partitions=partitions, most=segments
        )
        by_partition: dict[bytes, list[DeliveryGroup]] = defaultdict(list)
        for row in rows:
            by_partition[row[7]].append(DeliveryGroup.read(row))
        feeds = [_Feed(queue, by_partition[one.partition], one, segments) for one in chosen]
        if asked.selector is not None:
            for one, feed in zip(chosen, feeds, strict=True):
                known = by_partition[one.partition]
                feed.cut(await count_matching(core, work, asked.selector, feed.picks, known))
        picks = _merge(feeds, asked.limit, bound)
        if picks is not None:
            return picks
        segments, width = 4 * segments, 4 * width
    return []


class _Feed:
    """The deliveries of a partition in order, as far as they were read."""

    def __init__(
        self, queue: Queue, groups: Sequence[DeliveryGroup], first: _First, segments: int
    ) -> None:
        last = _last_segment(groups, segments)
        exhausted = {id(group): moves.is_exhausted(queue, group.record) for group in groups}
        known = sorted(
            (message, group.rank, int(group.phase), int(group.first), exhausted[id(group)])
            for group in groups
            if last is None or group.segment <= last
            for message in group.ids()
            if first.end is None or message < first.end
        )
        self.picks: list[_Pick] = []
        remaining = first.remaining
        for message, rank, phase, row_key, fails in known:
            if not remaining:
                break
            self.picks.append(_Pick(rank, message, phase, row_key, fails))
            remaining -= not fails
        #: Whether it may hand out more than was read.
        self.more = (
            remaining > 0
            and last is not None
            and (first.end is None or message_id(last + 1, 0) < first.end)
        )

    def cut(self, count: int) -> None:
        """End the feed after this many deliveries."""
        if count < len(self.picks):
            del self.picks[count:]
            self.more = False


def _last_segment(groups: Iterable[DeliveryGroup], segments: int) -> int | None:
    """The segment after which groups may be missing; None if all were read."""
    of_phase: dict[Phase, set[int]] = defaultdict(set)
    for group in groups:
        of_phase[group.phase].add(group.segment)
    return min((max(read) for read in of_phase.values() if len(read) >= segments), default=None)


def _merge(feeds: Sequence[_Feed], limit: int, bound: _Pick | None) -> list[_Pick] | None:
    """The next deliveries of all feeds in claim order; None if more must be read.

    ``bound`` is the first delivery that is in none of the feeds.
    """
    heads = [(feed.picks[0], nth, 0) for nth, feed in enumerate(feeds) if feed.picks]
    heapq.heapify(heads)
    merged: list[_Pick] = []
    granted = 0
    while granted < limit and len(merged) - granted < _MAX_FAILED:
        if bound is not None and (not heads or bound < heads[0][0]):
            return None
        if not heads:
            break
        pick, nth, at = heads[0]
        merged.append(pick)
        granted += not pick.exhausted
        feed = feeds[nth]
        if at + 1 < len(feed.picks):
            heapq.heapreplace(heads, (feed.picks[at + 1], nth, at + 1))
        elif feed.more and granted < limit:
            return None
        else:
            heapq.heappop(heads)
    return merged
