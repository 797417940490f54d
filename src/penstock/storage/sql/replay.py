"""Replay: make settled deliveries, or log entries that the queue lacks, available again.

They return in publish order, at their old positions (C4), with no attempts and with their
history. The queue's row is locked first, because the router adds missing deliveries as well. The
whole replay is one commit (S3). It works in batches, which bounds its memory, and every batch
after the first waits for a turn, so that a long replay does not starve other tenants. Expired
messages (C3), and those that the same replay id has moved before, are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from penstock.errors import Conflict, UnknownQueue
from penstock.filters import Selection, parse
from penstock.model.decisions import expiry_in_queue, is_expired, replay_due_at, replay_expires_at
from penstock.model.delivery import ReplayReply, ReplaySource, Snapshot
from penstock.model.message import Message, Offset
from penstock.model.states import State, Transition
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row
from penstock.storage.sql.deliveries import (
    DEAD,
    DeliveryGroup,
    DeliveryRecord,
    Mark,
    Phase,
    is_dead,
    segment_of,
)
from penstock.storage.sql.group_cursor import Item, hold, in_publish_order, matching, snapshot
from penstock.storage.sql.keys import hold_keys, newest_entries
from penstock.storage.sql.retention import share
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.work import Work
from penstock.storage.turns import Slice

__all__ = ["replay"]

#: Deliveries that a reply shows as a sample.
_SAMPLE: Final = 10
#: Deliveries moved per turn: about 4 ms of work.
_BATCH: Final = 1_000
#: Segments of the log per read, and for the first read.
_MAX_SEGMENTS: Final = 16
_FIRST_SEGMENTS: Final = 2
#: Phases of deliveries that a replay from the log brings back.
_ENDED: Final = (Phase.DONE, Phase.EXPIRED, Phase.DEAD_RETURNED, Phase.DEAD_DONE)


class _Candidate(NamedTuple):
    """A message that may return, and its delivery as it was read; None if it has none."""

    message: Message
    item: Item | None


async def replay(
    core: Core,
    tenant: str,
    queue: str,
    source: ReplaySource,
    where: Selection | None,
    limit: int,
    *,
    rate: int | None,
    dry_run: bool,
    replay_id: str | None,
    ttl_ms: int | None,
) -> ReplayReply:
    """Bring back up to ``limit`` deliveries; a dry run only reports them."""
    settled = (await core.stable()).settled if source is ReplaySource.LOG else 0

    async def act(work: Work) -> ReplayReply:
        found, dead = work.tenant.find(queue)
        if dead and source is ReplaySource.LOG:
            raise Conflict("A dead-letter queue has no log of its own.", field="source")
        if dead and source is ReplaySource.DONE and ttl_ms is not None:
            raise Conflict("Dead letters do not expire.", field="ttl_ms")
        replaying = _Replay(
            core,
            work,
            found,
            where,
            limit,
            # Failed deliveries return to the queue, whichever of the two is named (D1).
            dead=dead and source is ReplaySource.DONE,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
            ttl_ms=ttl_ms,
        )
        cursor = await _lock(work, found, dry_run=dry_run)
        match source:
            case ReplaySource.FAILED:
                await replaying.from_phase(Phase.DEAD_RETURNED)
            case ReplaySource.DONE:
                await replaying.from_phase(Phase.DEAD_DONE if dead else Phase.DONE)
            case _:
                await replaying.from_log(settled, cursor)
        return replaying.reply

    return await core.transact(tenant, act)


async def _lock(work: Work, queue: Queue, *, dry_run: bool) -> Offset | None:
    """Lock the queue against routers, except on a dry run; returns its cursor."""
    statement = "read_cursor" if dry_run else "lock_queue"
    rows = await work.session.fetch(statement, queue=queue.number)
    if not rows:
        raise UnknownQueue(f"There is no queue {queue.name!r}.", field="queue")
    cursor = rows[0][0]
    return None if cursor is None else Offset(cursor)


class _Replay:
    """One replay: its arguments, and its progress."""

    def __init__(
        self,
        core: Core,
        work: Work,
        queue: Queue,
        where: Selection | None,
        limit: int,
        *,
        dead: bool,
        rate: int | None,
        dry_run: bool,
        replay_id: str | None,
        ttl_ms: int | None,
    ) -> None:
        self._core = core
        self._work = work
        self._queue = queue
        self._where = where
        self._limit = limit
        self._dead = dead
        self._rate = rate
        self._dry_run = dry_run
        self._replay_id = replay_id
        self._ttl_ms = ttl_ms
        self._moved = 0
        self._skipped = 0
        self._sample: list[Snapshot] = []
        self._looked = False
        self._slice = Slice(core.turns, work.tenant.name)

    @property
    def reply(self) -> ReplayReply:
        """The result so far."""
        return ReplayReply(self._moved, tuple(self._sample), self._skipped)

    # -- candidates --------------------------------------------------------------------

    async def from_phase(self, phase: Phase) -> None:
        """Offer the queue's deliveries in a phase."""
        work = self._work
        walk = in_publish_order(work.session, self._queue.number, phase)
        while self._moved < self._limit and (items := await walk.take(_BATCH)):
            await self._turn()
            found = await matching(self._core, work.session, work.tenant.number, items, self._where)
            await self._offer([_Candidate(message, item) for item, message in found], (phase,))

    async def from_log(self, settled: int, cursor: Offset | None) -> None:
        """Offer log entries that the queue lacks or has settled."""
        first, most = 0, _FIRST_SEGMENTS
        while self._moved < self._limit:
            rows = await self._work.session.fetch(
                "scan_metadata",
                tenant=self._work.tenant.number,
                first=first,
                last=settled,
                most=most,
            )
            if not rows:
                return
            candidates = await self._not_live(await self._logged(rows, cursor))
            for start in range(0, len(candidates), _BATCH):
                await self._offer(candidates[start : start + _BATCH], _ENDED)
            first, most = rows[-1][0] + 1, min(2 * most, _MAX_SEGMENTS)
            if cursor is not None and first > segment_of(cursor)[0]:
                return

    async def _logged(self, rows: Sequence[Row], cursor: Offset | None) -> list[Message]:
        """The messages of these segments that are routed and match the filters."""
        routed: list[Message] = []
        for number, published_at, metadata in rows:
            segment = Segment.read(number, self._work.tenant.number, published_at, metadata, None)
            messages = map(segment.message, range(len(segment.metadata)))
            routed += [m for m in messages if cursor is None or m.offset < cursor]
            await self._rest()
        keyed = {message.id for message in routed if message.key is not None}
        newest = await newest_entries(self._work, keyed) if keyed else {}
        replaced = await self._messages({*newest.values()})
        # A replacement is offered at its first entry, while the log still has that.
        firsts = await self._messages({m.id for m in routed if m.is_replacement})
        takes, where = parse(self._queue.policy.filter).matches, self._where
        found: list[Message] = []
        for entry in routed:
            await self._rest()
            message = replaced.get(newest.get(entry.id, 0), entry)
            if entry.is_replacement and (entry.id in firsts or entry.offset != message.offset):
                continue
            if takes(message) and (where is None or where.matches(message)):
                found.append(message)
        return found

    async def _turn(self) -> None:
        """Wait for a turn, except before the first batch."""
        if self._looked:
            await self._slice.next()
        self._looked = True

    async def _rest(self) -> None:
        """Wait for the next turn, if the time of this one is used up."""
        if self._slice.is_over:
            await self._slice.next()

    async def _messages(self, offsets: Collection[int]) -> dict[int, Message]:
        if not offsets:
            return {}
        work = self._work
        return await self._core.segments.messages(work.session, work.tenant.number, offsets)

    async def _not_live(self, messages: Sequence[Message]) -> list[_Candidate]:
        """The messages that neither the queue nor its dead letters still have to deliver."""
        if not messages:
            return []
        rows = await self._work.session.fetch(
            "segment_groups",
            queues=[self._queue.number],
            segments=sorted({segment_of(message.id)[0] for message in messages}),
        )
        there: dict[int, Item] = {}
        for group in map(DeliveryGroup.read, rows):
            there.update((id_, Item.of(group, id_)) for id_ in group.ids())
            await self._rest()
        candidates = [_Candidate(message, there.get(message.id)) for message in messages]
        return [c for c in candidates if c.item is None or c.item.group.phase in _ENDED]

    # -- moving ------------------------------------------------------------------------

    async def _offer(self, candidates: Sequence[_Candidate], phases: Sequence[Phase]) -> None:
        """Bring back the candidates that are not skipped, in order, up to the limit."""
        marked = await self._marked(candidates)
        rest = list(candidates)
        while rest and self._moved < self._limit:
            chosen: list[_Candidate] = []
            looked = 0
            for candidate in rest:
                if self._moved + len(chosen) == self._limit:
                    break
                looked += 1
                if candidate.message.id in marked or self._is_expired(candidate.message):
                    self._skipped += 1
                else:
                    chosen.append(candidate)
            rest = rest[looked:]
            await self._bring_back(chosen, phases)

    async def _marked(self, candidates: Sequence[_Candidate]) -> set[int]:
        """The messages that this replay id has moved before."""
        if self._replay_id is None or not candidates:
            return set()
        rows = await self._work.session.fetch(
            "find_replayed",
            queue=self._queue.number,
            dead=self._dead,
            replay_id=self._replay_id,
            messages=[int(candidate.message.id) for candidate in candidates],
        )
        return {message for (message,) in rows}

    def _is_expired(self, message: Message) -> bool:
        renewed = self._ttl_ms is not None
        return not self._dead and not renewed and is_expired(message.expires_at, self._work.now)

    async def _bring_back(self, chosen: Sequence[_Candidate], phases: Sequence[Phase]) -> None:
        moves: dict[tuple[int, Phase, DeliveryRecord], tuple[DeliveryGroup, list[int]]] = {}
        marks: list[tuple[int, bool, str, int]] = []
        held = await self._hold(chosen, phases)
        await self._turn()
        for message, group in held:
            phase, record = self._record(message, None if group is None else group.record)
            self._moved += 1
            if len(self._sample) < _SAMPLE:
                self._sample.append(snapshot(self._queue, phase, record, message))
            segment, index = segment_of(message.id)
            if self._dry_run:
                continue
            if group is None:
                rank = 9 - message.priority
                self._work.add(self._queue.number, phase, rank, segment, [index], record)
            else:
                moves.setdefault((id(group), phase, record), (group, []))[1].append(index)
            if self._replay_id is not None:
                marks.append((self._queue.number, self._dead, self._replay_id, int(message.id)))
        for (_, phase, record), (group, members) in moves.items():
            self._work.move(group, members, phase, record)
        await self._work.session.write("put_replayed", marks)
        if not self._dry_run:
            await self._work.write()

    async def _hold(
        self, chosen: Sequence[_Candidate], phases: Sequence[Phase]
    ) -> list[tuple[Message, DeliveryGroup | None]]:
        """The messages with their locked groups; None for messages that are only in the log.

        Messages that moved, were replaced or left the log since they were read are dropped (G1).
        """
        if self._dry_run:
            return [(message, None if item is None else item.group) for message, item in chosen]
        seen = [item for _, item in chosen if item is not None]
        held = await hold(self._work, seen, phases) if seen else {}
        fresh = [message for message, item in chosen if item is None]
        added = await hold_keys(self._work, self._queue, fresh)
        kept = await share(self._work.session, added)
        return [
            (message, held[message.id].group if item is not None else None)
            for message, item in chosen
            if message.id in (kept if item is None else held)
        ]

    def _record(
        self, message: Message, before: DeliveryRecord | None
    ) -> tuple[Phase, DeliveryRecord]:
        """The phase and record of the delivery after the replay; only its history is kept."""
        now = self._work.now
        due_at = replay_due_at(message.deliver_at, now, self._moved, self._rate)
        delayed = due_at > now
        phase = Phase.DELAYED if delayed else Phase.RETURNED
        if self._dead:
            phase = Phase(phase + DEAD)
        mark = Mark.of(
            now,
            Transition.REPLAY,
            State.DELAYED if delayed else State.AVAILABLE,
            dead=is_dead(phase),
        )
        expires_at = replay_expires_at(message.expires_at, due_at, self._ttl_ms)
        record = DeliveryRecord(
            joined_at=now if before is None else before.joined_at,
            expires_at=expires_at
            if self._dead
            else expiry_in_queue(self._queue.policy, expires_at, now),
            max_attempts=message.max_attempts,
            due_at=due_at if delayed else None,
            lease=0 if before is None else before.lease,
            at=now if self._dead else None,
            error=before.error if self._dead and before is not None else None,
            marks=(mark,) if before is None else before.marked(mark),
            entry=int(message.offset) if message.is_replacement else None,
            keyed=message.key is not None,
            partition=(message.partition_key or "") if self._queue.ordered else None,
        )
        return phase, record
