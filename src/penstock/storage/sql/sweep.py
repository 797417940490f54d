"""Sweep: apply the passage of time to every queue, and remove what retention allows (G1, A1).

Every server sweeps every second, so a sweep with nothing to do must cost next to nothing: one
statement finds what is overdue in all queues, from the ends of indexes, and only those queues get
transactions. Groups that another server has locked are skipped, so servers that sweep at the same
time share the work instead of waiting for each other. A server's memory of earlier sweeps only
decides where to search first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from penstock.errors import StoreCorrupt
from penstock.model.decisions import retained_after
from penstock.model.delivery import SweepReply
from penstock.model.queue import QueuePolicy, RetryPosition
from penstock.model.states import State, Transition
from penstock.storage.sql import moves, partitions
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.compaction import CounterCompaction
from penstock.storage.sql.copy_sizes import fitting
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Row
from penstock.storage.sql.deliveries import DeliveryGroup, Phase
from penstock.storage.sql.retention import DroppedQueues, LogRetention, forget_ids
from penstock.storage.sql.work import Work

__all__ = ["Memory", "sweep"]

#: Groups that one transaction changes at most.
_MAX_GROUPS: Final = 250
#: Queues whose delayed failed deliveries one sweep examines.
_MAX_LOOKS: Final = 8
#: How long an idle server postpones cleaning up after other servers.
_REST_MS: Final = 10_000
#: The initial position of such a scan.
_START: Final = (-1, -1)

_OWN_TIMED: Final = (Phase.FRESH, Phase.RETURNED, Phase.DELAYED, Phase.IN_FLIGHT)
_DEAD_TIMED: Final = (Phase.DEAD_DELAYED, Phase.DEAD_IN_FLIGHT)
_DONE: Final = (Phase.DONE, Phase.EXPIRED, Phase.DEAD_DONE)
_FAILED: Final = (Phase.DEAD_RETURNED,)
#: The phase under which the statement ``horizons`` reports consumers that missed heartbeats.
_CONSUMERS: Final = -1

_REMOVED: Final = "removed"
_COUNTED: Final = {
    Transition.DUE: "due",
    Transition.LAPSE: "lapsed",
    Transition.EXPIRE: "expired",
}


class _Step:
    """The result of one transaction."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.freed: set[int] = set()
        #: Whether there is more of the same.
        self.rest = False

    def drop(self, work: Work, group: DeliveryGroup) -> None:
        """Remove the group."""
        moves.remove(work, group, work.left(group))
        self.counts[_REMOVED] += group.size
        self.freed.add(group.segment)


class _Tally:
    """Counts what a sweep does to deliveries, and enforces its limit."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.counts: Counter[str] = Counter()
        #: Segments from which deliveries were removed.
        self.freed: set[int] = set()
        self.more = False

    def may_go_on(self) -> bool:
        """Whether one more change fits; if not, sets ``more``."""
        self.more = self.more or self.left <= 0
        return self.left > 0

    def add(self, step: _Step) -> None:
        """Add the result of a step."""
        self.counts.update(step.counts)
        self.freed |= step.freed
        self.left -= step.counts.total()


class _Overdue(NamedTuple):
    """A queue with overdue work."""

    tenant: str
    number: int
    name: str
    policy: QueuePolicy
    until: dict[int, int]
    """By phase, the earliest time at which something is due, or was settled."""

    @property
    def place(self) -> tuple[str, str]:
        """Its place in the order in which queues are swept."""
        return self.tenant, self.name

    def due(self, phases: Iterable[Phase], edge: int) -> list[int]:
        """The given phases that have something at or before this time."""
        return [int(p) for p in phases if p in self.until and self.until[p] <= edge]


class _Tidied(NamedTuple):
    """What was removed besides deliveries."""

    ids: int
    entries: int
    more: bool


_NOTHING: Final = _Tidied(0, 0, more=False)


class Memory:
    """A server's memory between sweeps."""

    def __init__(self) -> None:
        self.log_retention = LogRetention()
        self.dropped_queues = DroppedQueues()
        self.compaction = CounterCompaction()
        #: Tenant and name of the queue at which the last sweep stopped.
        self.turn = ("", "")
        #: By queue, the number of the sweep that last examined delayed failed deliveries, and
        #: its position.
        self.looks: dict[int, tuple[int, tuple[int, int]]] = {}
        self.sweeps = 0
        #: The commit count of this server when there was nothing to tidy up, and until when that
        #: is assumed if there are no more commits.
        self._rested = (-1, 0)

    def rests(self, core: Core) -> bool:
        """Whether there is probably nothing to tidy up."""
        commits, until = self._rested
        return commits == core.commits and until - _REST_MS <= core.clock.now() < until

    def rest(self, core: Core) -> None:
        """Record that there was nothing to tidy up."""
        self._rested = (core.commits, core.clock.now() + _REST_MS)


async def sweep(core: Core, limit: int) -> SweepReply:
    """Apply the passage of time to all queues, then remove what retention allows.

    ``limit`` bounds deliveries, ids and log entries each, approximately: a row is not divided. A
    queue or a segment that cannot be read does not delay the others (X1).
    """
    core.check_open()
    memory = core.sweeping = core.sweeping or Memory()
    memory.sweeps += 1
    tally = _Tally(limit)
    damage = await _sweep_queues(core, memory, tally)
    tidied = _NOTHING
    if not memory.rests(core):
        commits = core.commits
        tidied = await _tidy(core, memory, limit, tally.freed)
        damage += memory.log_retention.damage
        if tidied == _NOTHING and not damage and commits == core.commits:
            memory.rest(core)
    if damage:
        raise damage[0]
    return SweepReply(
        due=tally.counts["due"],
        lapsed=tally.counts["lapsed"],
        expired=tally.counts["expired"],
        removed=tally.counts[_REMOVED],
        entries_removed=tidied.entries,
        ids_forgotten=tidied.ids,
        more=tally.more or tidied.more,
    )


async def _tidy(core: Core, memory: Memory, limit: int, freed: Collection[int]) -> _Tidied:
    """Remove old ids, rows of deleted queues and old segments; consolidate tallies."""
    await core.run_without_tenant(core.check_schema)
    ids, more_ids = await forget_ids(core, limit)
    more_leftovers = await memory.dropped_queues.sweep(core)
    await memory.compaction.sweep(core)
    entries, more_entries = await memory.log_retention.sweep(core, limit, freed)
    return _Tidied(ids, entries, more_ids or more_leftovers or more_entries)


# -- all queues ------------------------------------------------------------------------


async def _sweep_queues(core: Core, memory: Memory, tally: _Tally) -> list[StoreCorrupt]:
    """Sweep the queues that need it, starting where the last sweep stopped."""
    now = core.clock.now()
    rows = await core.fetch("horizons", now=now)
    queues = await _overdue(core, rows)
    looks = _choose_looks(memory, queues)
    turn, memory.turn = memory.turn, ("", "")
    damage: list[StoreCorrupt] = []
    for queue in sorted(queues, key=lambda q: (q.place < turn, q.place)):
        try:
            await _sweep_queue(core, queue, now, tally)
            if queue.number in looks:
                await _look_at_delayed(core, memory, queue, tally)
        except StoreCorrupt as error:
            damage.append(error)
        if tally.more and not any(memory.turn):
            memory.turn = queue.place
    return damage


async def _overdue(core: Core, rows: Sequence[Row]) -> list[_Overdue]:
    """The queues of these rows, with their current policies."""
    found: dict[int, _Overdue] = {}
    for tenant, version, number, phase, until in rows:
        known = await core.catalog.tenant(tenant)
        if known.version < version:
            known = await core.catalog.reload(tenant)
        queue = known.numbered.get(number)
        if queue is None:
            continue
        overdue = found.setdefault(number, _Overdue(tenant, number, queue.name, queue.policy, {}))
        overdue.until[phase] = min(until, overdue.until.get(phase, until))
    return list(found.values())


# -- one queue -------------------------------------------------------------------------


async def _sweep_queue(core: Core, queue: _Overdue, now: int, tally: _Tally) -> None:
    await _let_time_act(core, queue, queue.due(_OWN_TIMED, now), tally)
    dead_moved = await _let_time_act(core, queue, queue.due(_DEAD_TIMED, now), tally)
    if _CONSUMERS in queue.until:
        await _drop_dead_consumers(core, queue)
    edge = retained_after(queue.policy, State.DONE, now)
    if edge is not None:
        await _remove(core, queue, queue.due(_DONE, edge), tally)
    edge = retained_after(queue.policy, State.FAILED, now)
    if edge is not None:
        # A delivery that just came back to the dead letters keeps its original failure time.
        phases = _FAILED if dead_moved else queue.due(_FAILED, edge)
        await _remove(core, queue, phases, tally)


async def _let_time_act(core: Core, queue: _Overdue, phases: Sequence[int], tally: _Tally) -> int:
    """Move due, lapsed and expired deliveries; returns how many."""

    async def step(work: Work, known: Queue, most: int, left: int) -> _Step:
        rows = await work.session.due_groups(known.number, phases, work.now, most)
        if known.policy.retry_position is RetryPosition.BACK:
            await moves.draw_for_lapses(work, known, [DeliveryGroup.read(row) for row in rows])

        made = _Step()
        made.rest = True
        async for group in fitting(core, work, known, work.hold_all(rows)):
            if made.counts.total() >= left:
                return made
            transition = moves.let_time_act(work, known, group)
            if transition is not None:
                made.counts[_COUNTED[transition]] += group.size
        made.rest = work.copies.is_full or len(rows) == most
        return made

    return await _in_steps(core, queue, step, tally) if phases else 0


async def _drop_dead_consumers(core: Core, queue: _Overdue) -> None:
    """Remove consumers that missed their heartbeats, and their partitions (O1)."""

    async def act(work: Work) -> bool:
        known = work.tenant.numbered.get(queue.number)
        if known is None:
            return True
        if known.ordered:
            return await partitions.drop_dead_consumers(core, work, known)
        await work.session.run("clear_consumers", queue=known.number)
        return True

    while not await core.transact(queue.tenant, act):
        pass  # The dead-letter copies need several transactions.


async def _remove(core: Core, queue: _Overdue, phases: Sequence[int], tally: _Tally) -> None:
    """Remove deliveries that were settled long enough ago (G1)."""

    async def step(work: Work, known: Queue, most: int, left: int) -> _Step:
        # The policy may have changed since the phases were chosen.
        state = State.DONE if phases[0] in _DONE else State.FAILED
        edge = retained_after(known.policy, state, work.now)
        # A joining queue has deliveries beyond its cursor. If they were removed now, the router
        # would add them again as new ones (S2).
        if edge is None or known.joining:
            return _Step()
        rows = await work.session.due_groups(known.number, phases, edge, most)
        made = _Step()
        for group in work.hold_all(rows):
            if made.counts.total() >= left:
                made.rest = True
                return made
            made.drop(work, group)
        made.rest = len(rows) == most
        return made

    if phases:
        await _in_steps(core, queue, step, tally)


async def _in_steps(
    core: Core,
    queue: _Overdue,
    step: Callable[[Work, Queue, int, int], Awaitable[_Step]],
    tally: _Tally,
) -> int:
    """Run short transactions until nothing is left, or the limit is reached; returns the total.

    A step gets the number of groups it may lock and of deliveries it may change. It may lock one
    group more than fits, so that ``more`` is set only if there is more.
    """
    done = 0

    async def act(work: Work) -> _Step:
        known = work.tenant.numbered.get(queue.number)
        if known is None:
            return _Step()
        return await step(work, known, min(_MAX_GROUPS, tally.left + 1), tally.left)

    while tally.may_go_on():
        made = await core.transact(queue.tenant, act)
        tally.add(made)
        done += made.counts.total()
        if not made.rest or not made.counts:
            break
    return done


# -- failed deliveries that are delayed ------------------------------------------------
# Their rows are indexed by due time, not by failure time. They are few: dead letters that were
# nacked with a delay. So each sweep scans one page per queue.


def _choose_looks(memory: Memory, queues: Sequence[_Overdue]) -> set[int]:
    """The queues to examine: those not examined for the longest time."""
    wanted = [
        queue.number
        for queue in queues
        if Phase.DEAD_DELAYED in queue.until and queue.policy.failed_retention_s
    ]
    memory.looks = {number: memory.looks.get(number, (0, _START)) for number in wanted}
    return set(sorted(wanted, key=lambda number: memory.looks[number][0])[:_MAX_LOOKS])


async def _look_at_delayed(core: Core, memory: Memory, queue: _Overdue, tally: _Tally) -> None:
    """Remove those that failed too long ago."""
    _, (rank, row_key) = memory.looks[queue.number]
    rows = await core.fetch(
        "delayed_failures", queue=queue.number, rank=rank, row_key=row_key, most=_MAX_GROUPS
    )
    seen = [DeliveryGroup.read(row) for row in rows]
    last = (rows[-1][2], rows[-1][3]) if len(rows) == _MAX_GROUPS else _START
    memory.looks[queue.number] = (memory.sweeps, last)
    edge = retained_after(queue.policy, State.FAILED, core.clock.now())
    row_keys = [group.key()[2:] for group in seen if _failed_before(group, edge)]
    if not row_keys or not tally.may_go_on():
        return

    async def act(work: Work) -> _Step:
        made = _Step()
        known = work.tenant.numbered.get(queue.number)
        if known is None:
            return made
        before = retained_after(known.policy, State.FAILED, work.now)
        for group in await work.lock_groups(known.number, Phase.DEAD_DELAYED, row_keys):
            if _failed_before(group, before):
                made.drop(work, group)
        return made

    tally.add(await core.transact(queue.tenant, act))


def _failed_before(group: DeliveryGroup, edge: int | None) -> bool:
    return edge is not None and group.record.at is not None and group.record.at <= edge
