"""Settle: end claims, each on its own, or all together with a publish (S1, S2, S3).

Concurrent settles of one queue on this server share one transaction. A receipt locates its group; a
group whose deliveries were extended separately has moved, and is found by its segment. If this
server has cached all the groups as it wrote them, the transaction is one statement that checks that
they are unchanged. If the settlements make more dead-letter copies than one transaction may, others
continue.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from penstock.model.decisions import Jitter, extended_deadline, returned_by
from penstock.model.delivery import (
    Ack,
    Extend,
    Outcome,
    Receipt,
    Reject,
    Settlement,
    SettleReply,
    Verdict,
)
from penstock.model.delivery_events import reports
from penstock.model.limits import MAX_COPIES
from penstock.model.queue import RetryPosition
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.storage.repetition import decode_reply, encode_reply, settle_id
from penstock.storage.sql import moves
from penstock.storage.sql.batching import Call
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.copy_sizes import MEASURED, check_copies, measure
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import NeedsTransaction
from penstock.storage.sql.deliveries import INDEX_BITS, DeliveryGroup, Phase, message_id, segment_of
from penstock.storage.sql.publish import Publishing
from penstock.storage.sql.work import Work
from penstock.storage.topic_checks import CheckedBy

__all__ = ["Settle", "settle", "settle_and_publish", "settle_within"]

#: By rank and lease, receipts and their messages.
_Wanted: TypeAlias = dict[tuple[int, int], list[tuple[Receipt, int]]]
#: How often a settle searches for a delivery that is not in the row that its receipt names.
_LOOKS: Final = 3


class Settle(NamedTuple):
    """The arguments of one settle call."""

    settlements: Sequence[Settlement]


async def settle(
    core: Core, tenant: str, name: str, calls: Sequence[Call[Settle, SettleReply]]
) -> None:
    """Serve the calls, all of them settles of one queue."""
    items = [item for call in calls for item in call.asked.settlements]
    outcomes: list[Outcome] = []

    async def act(work: Work) -> Sequence[Outcome]:
        queue, dead = work.tenant.find(name)
        part = _appending_part(queue, items[len(outcomes) :])
        table = await _Table.read(core, work, queue, part, dead=dead)
        await table.draw_positions(part)
        settled = await table.settle_fitting(core, part)
        table.finish(core)
        return settled

    waiting, answered = deque(calls), 0
    while waiting:
        try:
            outcomes += await _settled(core, tenant, act)
        except BaseException as error:
            if len(outcomes) > answered:
                # A part of this call is settled, so it must not be tried again with the others.
                waiting[0].refuse(error)
            raise
        while waiting and len(waiting[0].asked.settlements) <= len(outcomes) - answered:
            call = waiting.popleft()
            begin, answered = answered, answered + len(call.asked.settlements)
            call.answer(SettleReply(tuple(outcomes[begin:answered]), (), "fsync"))


async def settle_within(
    core: Core, work: Work, queue: Queue, items: Sequence[Settlement], *, dead: bool
) -> Sequence[Outcome]:
    """Settle in a transaction that does more. None of the items may return a delivery."""
    table = await _Table.read(core, work, queue, items, dead=dead)
    outcomes = table.settle_all(items, core.options.jitter)
    table.finish(core)
    return outcomes


async def _settled(
    core: Core, tenant: str, act: Callable[[Work], Awaitable[Sequence[Outcome]]]
) -> Sequence[Outcome]:
    try:
        return await core.single_statement(tenant, act)
    except NeedsTransaction:
        return await core.transact(tenant, act)


def _appending_part(queue: Queue, items: Sequence[Settlement]) -> Sequence[Settlement]:
    """The first settlements: as many as may append dead-letter copies or events together."""
    policy = queue.policy
    if policy.dead_letter_topic is None and not policy.events:
        return items
    appends = [
        position
        for position, item in enumerate(items)
        if (reports(policy, State.DONE) if isinstance(item, Ack) else not isinstance(item, Extend))
    ]
    return items if len(appends) <= MAX_COPIES else items[: appends[MAX_COPIES]]


async def settle_and_publish(
    core: Core,
    tenant: str,
    name: str,
    settlements: Sequence[Settlement],
    outgoing: Sequence[Outgoing],
    checked: CheckedBy = None,
) -> SettleReply:
    """All or nothing: one stale receipt aborts the others and publishes nothing.

    A repeated call gets the first answer again.
    """

    repetition = settle_id(settlements)

    async def act(work: Work) -> SettleReply:
        queue, dead = work.tenant.find(name)
        publishing = Publishing(core, work)
        await publishing.begin(outgoing)
        table = await _Table.read(core, work, queue, settlements, dead=dead)
        table.allow_no_repeated_acks()
        await table.draw_positions(settlements)
        outcomes = table.settle_all(settlements, core.options.jitter)
        if all(outcome.ok for outcome in outcomes):
            await check_copies(core, work)
        else:
            work.undo()
            # Read only now: the groups are locked, so a concurrent execution of this call is seen.
            first = repetition and await publishing.ids.read_settle(name, repetition)
            if first:
                return decode_reply(first, settlements, "fsync")
            return SettleReply(tuple(_aborted(outcome) for outcome in outcomes), (), "fsync")
        table.finish(core)
        # Settled deliveries reduce the depth that the publish is checked against.
        await work.write()
        published = await publishing.publish_all(outgoing, checked)
        if repetition is not None:
            reply = encode_reply(outcomes, published)
            await publishing.ids.write_settle(name, repetition, reply)
        return SettleReply(outcomes, published, "fsync")

    return await core.transact(tenant, act)


def _aborted(outcome: Outcome) -> Outcome:
    if not outcome.ok:
        return outcome
    return Outcome(receipt=outcome.receipt, verdict=Verdict.ABORTED)


def _of(group: DeliveryGroup, messages: Iterable[tuple[Receipt, int]]) -> list[tuple[Receipt, int]]:
    """The receipts whose messages are in the group, with their indices there."""
    base = group.segment << INDEX_BITS
    members = group.members if isinstance(group.members, range) else set(group.members)
    return [(receipt, message - base) for receipt, message in messages if message - base in members]


class _Table:
    """The deliveries of a settle, by receipt."""

    def __init__(self, work: Work, queue: Queue, *, dead: bool) -> None:
        self._work = work
        self._queue = queue
        self._dead = dead
        #: Receipt to its group in flight, and the index there.
        self._current: dict[Receipt, tuple[DeliveryGroup, int]] = {}
        #: Receipts of deliveries that they acked, and that are still recorded.
        self._acked: set[Receipt] = set()
        #: Plain acks are applied at the end: those of one group are one move.
        self._acks: dict[int, tuple[DeliveryGroup, list[int]]] = {}
        self._extended: dict[Receipt, int] = {}

    @classmethod
    async def read(
        cls,
        core: Core,
        work: Work,
        queue: Queue,
        settlements: Sequence[Settlement],
        *,
        dead: bool,
    ) -> _Table:
        """Lock the groups of the receipts, or take them from the cache."""
        table = cls(work, queue, dead=dead)
        claims = core.receipts.read(dict.fromkeys([item.receipt for item in settlements]))
        wanted: _Wanted = {
            (rank, lease): messages
            for (number, rank, lease), messages in claims.items()
            if number == queue.number
        }
        in_flight = int(Phase.DEAD_IN_FLIGHT if dead else Phase.IN_FLIGHT)
        if work.single_statement:
            table._remember(core, in_flight, wanted)
            return table
        leases: dict[int, list[int]] = defaultdict(list)
        for rank, lease in wanted:
            leases[rank].append(lease)
        groups: list[DeliveryGroup] = []
        for rank, row_keys in sorted(leases.items()):
            rows = await work.session.fetch(
                "lock_groups",
                queue=queue.number,
                phase=in_flight,
                rank=rank,
                row_keys=sorted(row_keys),
            )
            groups += work.hold_all(rows)
        table._find(groups, wanted)
        await table._find_elsewhere(wanted)
        return table

    def _remember(
        self,
        core: Core,
        phase: int,
        wanted: _Wanted,
    ) -> None:
        """Use the groups as this server last wrote them."""
        rows = [
            core.in_flight_rows.find((self._queue.number, phase, *row_key)) for row_key in wanted
        ]
        known = [row for row in rows if row is not None]
        self._find(self._work.hold_all(known), wanted)
        if len(self._current) < sum(map(len, wanted.values())):
            raise NeedsTransaction

    def _find(self, groups: Sequence[DeliveryGroup], wanted: _Wanted) -> None:
        for group in groups:
            messages = wanted.get((group.rank, group.record.lease), ())
            self._current.update(
                (receipt, (group, index)) for receipt, index in _of(group, messages)
            )

    async def _find_elsewhere(self, wanted: _Wanted) -> None:
        """Find the other receipts: extended separately, acked before, or stale.

        Another settle may move a delivery to a new row while this one waits for the lock of its
        old row. The query that waited does not see the new row; the next one does.
        """
        for look in range(_LOOKS):
            missing = {
                row_key: [item for item in items if not self._is_found(item[0])]
                for row_key, items in wanted.items()
            }
            segments = {segment_of(m)[0] for items in missing.values() for _, m in items}
            if not segments or (not await self._look_in(segments, missing) and look):
                return

    def _is_found(self, receipt: Receipt) -> bool:
        return receipt in self._current or receipt in self._acked

    async def _look_in(self, segments: Iterable[int], missing: _Wanted) -> bool:
        """Search these segments for receipts; returns whether it found groups not held yet."""
        phases = (
            (Phase.DEAD_IN_FLIGHT, Phase.DEAD_DONE) if self._dead else (Phase.IN_FLIGHT, Phase.DONE)
        )
        rows = await self._work.session.fetch(
            "lock_segment_groups",
            queues=[self._queue.number],
            segments=sorted(segments),
            phases=[int(phase) for phase in phases],
        )
        # Skip groups that are already held: they contain none of the missing receipts.
        groups = self._work.hold_new(rows)
        done = [group for group in groups if group.phase in (Phase.DONE, Phase.DEAD_DONE)]
        self._find(
            [group for group in groups if group.phase not in (Phase.DONE, Phase.DEAD_DONE)], missing
        )
        for group in done:
            messages = missing.get((group.rank, group.record.lease), ())
            self._acked.update(receipt for receipt, _ in _of(group, messages))
        return bool(groups)

    async def draw_positions(self, items: Sequence[Settlement]) -> None:
        """Draw positions for the deliveries that may go to the back, in the order of the items."""
        if self._queue.policy.retry_position is RetryPosition.KEEP:
            return
        returned = [item.receipt for item in items if not isinstance(item, Ack | Extend)]
        found = [self._current[receipt] for receipt in returned if receipt in self._current]
        messages = [message_id(group.segment, index) for group, index in found]
        await moves.draw_positions(self._work, self._queue, messages, dead=self._dead)

    def allow_no_repeated_acks(self) -> None:
        """Treat acks of already settled claims as stale: they must not publish again."""
        self._acked.clear()

    def settle_all(self, items: Sequence[Settlement], jitter: Jitter) -> tuple[Outcome, ...]:
        """Apply the settlements whose receipts are current."""
        return tuple([self._settle(item, jitter) for item in items])

    async def settle_fitting(self, core: Core, items: Sequence[Settlement]) -> Sequence[Outcome]:
        """As ``settle_all``, until the transaction is full of dead-letter copies."""
        jitter = core.options.jitter
        if self._queue.policy.dead_letter_topic is None:
            return self.settle_all(items, jitter)
        outcomes: list[Outcome] = []
        for begin in range(0, len(items), MEASURED):
            part = items[begin : begin + MEASURED]
            await measure(core, self._work, self._queue, self._ending(part))
            for item in part:
                if self._work.copies.is_full:
                    return outcomes
                outcomes.append(self._settle(item, jitter))
        return outcomes

    def _ending(self, items: Iterable[Settlement]) -> list[DeliveryGroup]:
        """The groups of deliveries that may fail or expire."""
        now, groups = self._work.now, list[DeliveryGroup]()
        for item in items:
            group, _ = self._current.get(item.receipt, (None, 0))
            if group is None or isinstance(item, Ack | Extend):
                continue
            if isinstance(item, Reject) or moves.may_end(self._queue, group, now):
                groups.append(group)
        return groups

    def _settle(self, item: Settlement, jitter: Jitter) -> Outcome:
        receipt = item.receipt
        found = self._current.get(receipt)
        # type() is cheaper than isinstance(), and this runs a hundred times per call.
        if found is None:
            if type(item) is Ack and receipt in self._acked:
                return Outcome(receipt, Verdict.OK, State.DONE)
            return Outcome(receipt, Verdict.STALE)
        if type(item) is Extend:
            return self._extend(item, found[0])
        del self._current[receipt]
        if self._extended:
            self._extended.pop(receipt, None)
        group, index = found
        if type(item) is Ack and item.result is None:
            self._acked.add(receipt)
            known = self._acks.get(id(group))
            if known is None:
                self._acks[id(group)] = (group, [index])
            else:
                known[1].append(index)
            return Outcome(receipt, Verdict.OK, State.DONE)
        if isinstance(item, Ack):
            self._acked.add(receipt)
            moves.finish(self._work, group, [index], item.result)
            return Outcome(receipt, Verdict.OK, State.DONE)
        assert not isinstance(item, Extend), "it was extended above"
        queue, attempts = self._queue, group.record.attempts
        asked = returned_by(item, queue.policy, attempts, jitter, dead=self._dead)
        ending = moves.give_back(self._work, queue, group, [index], *asked)
        return Outcome(receipt, Verdict.OK, ending.state, ending.due_at)

    def _extend(self, item: Extend, group: DeliveryGroup) -> Outcome:
        claimed_at, now = group.record.claimed_at, self._work.now
        assert claimed_at is not None
        deadline = extended_deadline(self._queue.policy, claimed_at, item.lease_ms, now)
        if deadline is None:
            return Outcome(item.receipt, Verdict.STALE)
        self._extended[item.receipt] = deadline
        return Outcome(item.receipt, Verdict.OK, State.IN_FLIGHT, deadline)

    def finish(self, core: Core) -> None:
        """Apply the deferred changes: plain acks per group, and extensions."""
        for group, members in self._acks.values():
            moves.finish(self._work, group, members, None)
        longer: dict[tuple[int, int], tuple[DeliveryGroup, list[int]]] = {}
        for receipt, until in self._extended.items():
            group, index = self._current[receipt]
            longer.setdefault((id(group), until), (group, []))[1].append(index)
        for (_, until), (group, members) in longer.items():
            # If the whole group is extended it keeps its row; otherwise this part gets a new one.
            alone = len(members) == len(self._work.left(group))
            row_key = group.record.row_key
            if not alone:
                row_key = core.leases.next(
                    self._work.now, max(group.record.lease, group.record.row_key)
                )
            record = replace(group.record, deadline=until, row_key=row_key)
            self._work.move(group, members, group.phase, record)
