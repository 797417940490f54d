"""assign: an external router gives a queue the messages that it found in the log (R1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.errors import Conflict, OtherStore, QueueFull, UnknownQueue
from penstock.filters import parse
from penstock.model.delivery import ReplaySource, RouteReply
from penstock.model.identity import StoreIdentity
from penstock.model.message import Offset
from penstock.model.queue import Ordering, Start
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
    opened_with,
)
from penstock.testing.laws import law

__all__ = ["Stretch", "TestAssign", "TestAssignConflicts", "TestAssignKeyed", "look"]

EARLIEST = Start(Start.EARLIEST)
ZERO = Offset(0)


class Stretch:
    """What a router found in a range of the log: the entries that match, and all with a key."""

    def __init__(
        self, start: Offset, end: Offset, offsets: list[Offset], filter: str = "TRUE"
    ) -> None:
        self.start = start
        self.end = end
        self.offsets = offsets
        self.filter = filter

    async def assign(
        self,
        store: Store,
        queue: str = "q",
        tenant: str = TENANT,
        *,
        of: StoreIdentity | None = None,
    ) -> RouteReply:
        return await store.engine.assign(
            tenant,
            queue,
            filter=self.filter,
            start=self.start,
            end=self.end,
            offsets=self.offsets,
            store=of,
        )


async def look(store: Store, filter: str = "TRUE", start: int = 0, limit: int = 1000) -> Stretch:
    """Find what a queue with this filter takes of the next ``limit`` entries."""
    page = await store.engine.read_log(TENANT, Offset(start), limit)
    takes = parse(filter).matches
    messages = [entry.message for entry in page.entries]
    named = [m.offset for m in messages if m.key is not None or takes(m)]
    return Stretch(Offset(start), page.next_offset, named, filter)


async def rest(store: Store, queue: str = "q") -> int:
    """Let the engine's own router do the rest. Returns how many it assigned."""
    assigned = 0
    for _ in range(100):
        reply = await store.engine.route(TENANT, queue, 1000)
        assigned += reply.assigned
        if reply.cursor is None:
            return assigned
    raise AssertionError("the router never catches up")


class TestAssign(Conformance):
    """Deliveries and the cursor move in one commit, and every router has the same result."""

    @law("A1")
    async def test_offsets_of_another_store_are_refused(self, store: Store) -> None:
        await store.publish(b"1", b"2")
        await store.queue(start=EARLIEST)
        present = await store.engine.identity(TENANT)
        before = await store.engine.get_queue(TENANT, "q")
        stretch = await look(store)
        theirs = await store.engine.identity(OTHER_TENANT)
        for other in (theirs, replace(present, epoch=theirs.epoch)):
            with pytest.raises(OtherStore, match="The assignment belongs to") as refused:
                await stretch.assign(store, of=other)
            assert (refused.value.law, refused.value.status) == ("A1", 409)
        assert await store.engine.get_queue(TENANT, "q") == before
        assert (await stretch.assign(store, of=present)).assigned == 2
        await store.engine.new_epoch()
        with pytest.raises(OtherStore, match="restored or copied"):
            await stretch.assign(store, of=present)

    @law("R1")
    async def test_what_is_named_is_assigned_and_the_cursor_moves(self, store: Store) -> None:
        ids = await store.publish(*(msg(color="red" if n % 2 else "blue") for n in range(10)))
        await store.queue(filter="color = 'red'", start=EARLIEST)
        stretch = await look(store, "color = 'red'", limit=6)
        assert list(map(int, stretch.offsets)) == ids[1:6:2]
        reply = await stretch.assign(store)
        assert (reply.scanned, reply.assigned, reply.cursor) == (3, 3, stretch.end)
        assert ids[5] < stretch.end <= ids[6]
        assert (await store.engine.get_queue(TENANT, "q")).cursor == stretch.end
        assert await store.ids("q", State.AVAILABLE) == ids[1:6:2]
        assert await rest(store) == 2
        assert ids_of(await store.claim(limit=100)) == ids[1::2]

    @law("R1")
    async def test_routers_agree(self, store: Store) -> None:
        """A publish, the engine's router and an external router have the same result."""
        condition = "color = 'red' OR (amount > 3 AND topic LIKE 'or%')"
        now = store.clock.now()
        await store.queue("play", condition)
        for n in range(24):
            await store.publish(
                msg(
                    b"%d" % n,
                    color="red" if n % 4 == 0 else "blue",
                    amount=n,
                    priority=n % 3,
                    key=f"k{n % 5}" if n % 3 == 0 else None,
                    deliver_at=now + 500 if n % 7 == 0 else None,
                    expires_at=now + 900 if n % 6 == 0 else None,
                ),
                topic="orders" if n % 2 else "other",
            )
        for name in ("inside", "outside"):
            await store.queue(name, condition, start=EARLIEST)
        await rest(store, "inside")
        at = ZERO
        end = await store.engine.log_end(TENANT)
        while at < end:
            stretch = await look(store, condition, at, 5)
            await stretch.assign(store, "outside")
            at = stretch.end
        assert await rest(store, "outside") == 0
        for state in (State.AVAILABLE, State.DELAYED):
            shown = {
                name: [
                    (s.message, s.payload, s.at if state is State.DELAYED else None)
                    for s in await store.browse(name, state, payloads=True)
                ]
                for name in ("play", "inside", "outside")
            }
            assert shown["outside"] == shown["inside"] == shown["play"] != []

    async def test_repeating_changes_nothing(self, store: Store) -> None:
        await store.publish(*[b"x"] * 6)
        await store.queue(start=EARLIEST)
        stretch = await look(store, limit=4)
        await stretch.assign(store)
        await store.ack(await store.claim_one())
        await store.fail_one()
        before = await store.picture("q")
        reply = await stretch.assign(store)
        assert (reply.scanned, reply.assigned, reply.cursor) == (0, 0, stretch.end)
        assert await store.picture("q") == before

    async def test_what_was_routed_meanwhile_is_passed_over(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 8)
        await store.queue(start=EARLIEST)
        stretch = await look(store, limit=6)
        await store.engine.route(TENANT, "q", 4)
        await store.ack(await store.claim_one())
        reply = await stretch.assign(store)
        assert (reply.scanned, reply.assigned, reply.cursor) == (2, 2, stretch.end)
        assert await store.ids("q", State.AVAILABLE) == ids[1:6]
        assert await store.ids("q", State.DONE) == ids[:1]

    async def test_the_cursor_never_goes_back(self, store: Store) -> None:
        await store.publish(*[b"x"] * 8)
        await store.queue(start=EARLIEST)
        late = await look(store, limit=3)
        cursor = (await store.engine.route(TENANT, "q", 5)).cursor
        before = await store.picture("q")
        assert await late.assign(store) == RouteReply(0, 0, cursor)
        assert await store.picture("q") == before
        assert await rest(store) == 3

    async def test_stretches_that_overlap(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 8)
        await store.queue(start=EARLIEST)
        first, second = await look(store, limit=5), await look(store, start=ids[2], limit=5)
        assert (await first.assign(store)).assigned == 5
        assert (await second.assign(store)).assigned == 2
        assert await store.ids("q", State.AVAILABLE) == ids[:7]

    async def test_a_queue_that_is_caught_up_is_left_alone(self, store: Store) -> None:
        await store.queue()
        await store.publish(*[b"x"] * 3)
        before = await store.picture("q")
        reply = await (await look(store)).assign(store)
        assert reply == RouteReply(0, 0, None)
        assert await store.picture("q") == before

    async def test_the_end_of_the_log_is_left_to_the_router(self, store: Store) -> None:
        """The cursor is at the end, and the engine's router handles what is published then."""
        ids = await store.publish(*[b"x"] * 3)
        await store.queue(start=EARLIEST)
        reply = await (await look(store)).assign(store)
        assert (reply.assigned, reply.cursor) == (3, await store.engine.log_end(TENANT))
        assert await store.engine.behind() == ((TENANT, "q"),)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.lag, stats.available) == (3, 3)
        more = await store.publish(b"y")
        assert (await store.engine.stats(TENANT, "q")).lag == 4
        assert await rest(store) in (0, 1)
        more += await store.publish(b"z")
        assert await store.ids("q", State.AVAILABLE) == [*ids, *more]

    async def test_nothing_named_moves_the_cursor(self, store: Store) -> None:
        ids = await store.publish(*[msg(color="blue")] * 4, msg(color="red"))
        await store.queue(filter="color = 'red'", start=EARLIEST)
        stretch = await look(store, "color = 'red'", limit=4)
        assert stretch.offsets == []
        assert (await stretch.assign(store)).cursor == stretch.end
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.lag, ids[3] <= stats.watermark < ids[4]) == (1, True)
        assert await rest(store) == 1

    @law("R1")
    async def test_the_filter_decides_about_what_is_named(self, store: Store) -> None:
        """A router that names too many entries does no harm."""
        red, _, _ = await store.publish(msg(color="red"), msg(color="blue"), msg())
        await store.queue(filter="color = 'red'", start=EARLIEST)
        stretch = await look(store)
        stretch.filter = "color = 'red'"
        reply = await stretch.assign(store)
        assert (reply.scanned, reply.assigned) == (3, 1)
        assert await store.ids("q", State.AVAILABLE) == [red]

    @law("C4")
    async def test_order_and_priority_are_kept(self, store: Store) -> None:
        low = await store.publish(*[msg(priority=1)] * 3)
        high = await store.publish(*[msg(priority=8)] * 3)
        await store.queue(start=EARLIEST)
        await (await look(store, limit=4)).assign(store)
        assert ids_of(await store.claim()) == high[:1]
        await (await look(store)).assign(store)
        assert ids_of(await store.claim(limit=9)) == [*high[1:], *low]

    @law("C3")
    async def test_times_are_kept(self, store: Store) -> None:
        now = store.clock.now()
        delayed, expired, plain = await store.publish(
            msg(deliver_at=now + 100), msg(expires_at=now + 10), b"plain"
        )
        store.clock.advance(20)
        await store.queue(start=EARLIEST)
        assert (await (await look(store)).assign(store)).assigned == 3
        assert await store.ids("q", State.DELAYED) == [delayed]
        assert ids_of(await store.claim(limit=9)) == [plain]
        assert await store.ids("q", State.EXPIRED) == [expired]
        store.clock.advance(80)
        assert ids_of(await store.claim(limit=9)) == [delayed]

    @law("O1")
    async def test_an_ordered_queue_has_its_partitions(self, store: Store) -> None:
        ids = await store.publish(*(msg(partition_key=key) for key in "abab"), b"none")
        await store.queue(start=EARLIEST, ordering=Ordering.PARTITION)
        await (await look(store, limit=3)).assign(store)
        await (await look(store)).assign(store)
        owned = await store.engine.join(TENANT, "q", "c")
        assert sorted(owned.partitions) == ["", "a", "b"]
        assert ids_of(await store.claim(limit=9)) == [ids[0], ids[1], ids[4]]

    async def test_assigning_ignores_max_depth(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 5)
        await store.queue(start=EARLIEST, max_depth=2)
        await (await look(store)).assign(store)
        await rest(store)
        with pytest.raises(QueueFull):
            await store.publish(b"y")
        assert ids_of(await store.claim(limit=9)) == ids

    async def test_what_was_replayed_is_left_alone(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 6)
        await store.queue(start=EARLIEST)
        stretch = await look(store)
        await store.engine.route(TENANT, "q", 2)
        await store.ack(await store.claim_one())
        replayed = await store.engine.replay(TENANT, "q", ReplaySource.LOG, None, 100)
        assert replayed.count == 1
        assert (await stretch.assign(store)).assigned == 4
        assert await store.ids("q", State.AVAILABLE) == ids

    @law("R1")
    async def test_a_queue_that_was_made_again(self, store: Store) -> None:
        """What was found for the old queue is valid for the new one, from its start."""
        ids = await store.publish(*[b"x"] * 6)
        await store.queue(start=EARLIEST)
        stretch = await look(store, limit=5)
        await store.engine.delete_queue(TENANT, "q")
        await store.queue(start=Start(Start.OFFSET, ids[2]))
        assert (await stretch.assign(store)).assigned == 3
        assert await store.ids("q", State.AVAILABLE) == ids[2:5]

    @law("Q1")
    async def test_no_other_queue_is_touched(self, store: Store) -> None:
        await store.queue("a")
        await store.publish(*[b"x"] * 5)
        await store.claim("a", 2)
        before = await store.picture("a")
        await store.queue(start=EARLIEST)
        await (await look(store)).assign(store)
        assert await store.picture("a") == before

    @law("P1")
    async def test_reopening_finds_both(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 6)
        await store.queue(start=EARLIEST)
        stretch = await look(store, limit=4)
        await stretch.assign(store)
        await store.reopen()
        assert (await store.engine.get_queue(TENANT, "q")).cursor == stretch.end
        assert (await stretch.assign(store)).assigned == 0
        assert await rest(store) == 2
        assert await store.ids("q", State.AVAILABLE) == ids

    async def test_many_publishes_and_few_of_them(self, store: Store) -> None:
        """Entries that are far apart, and some that are adjacent."""
        ids = []
        for n in range(90):
            ids += await store.publish(*[msg(n=n)] * (1 if n % 9 else 4))
        condition = "n IN (0, 1, 2, 80, 81) OR n = 9"
        await store.queue(filter=condition, start=EARLIEST)
        stretch = await look(store, condition)
        assert len(stretch.offsets) == 4 + 1 + 1 + 4 + 1 + 4
        assert (await stretch.assign(store)).assigned == 15
        assert await store.ids("q", State.AVAILABLE) == list(map(int, stretch.offsets))

    @law("G1")
    @opened_with(log_retention_ms=0)
    async def test_what_is_still_to_be_assigned_stays_in_the_log(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 6)
        await store.queue(start=EARLIEST)
        stretch = await look(store)
        await store.engine.route(TENANT, "q", 2)
        store.clock.advance(10**7)
        await store.sweep_all()
        assert (await stretch.assign(store)).assigned == 4
        await store.sweep_all()
        assert ids_of(await store.claim(limit=9)) == ids


class TestAssignConflicts(Conformance):
    """E1: an assignment that does not fit the current queue is refused, and nothing is done."""

    async def refused(self, store: Store, stretch: Stretch, field: str) -> None:
        before = await store.picture("q")
        with pytest.raises(Conflict) as caught:
            await stretch.assign(store)
        assert caught.value.field == field
        assert await store.picture("q") == before

    @law("R1")
    async def test_another_filter(self, store: Store) -> None:
        await store.publish(*[msg(color="red")] * 3)
        await store.queue(start=EARLIEST)
        stretch = await look(store)
        await store.queue(filter="color = 'red'")
        await self.refused(store, stretch, "filter")
        await rest(store)
        await self.refused(store, stretch, "filter")
        await store.queue()
        assert await stretch.assign(store) == RouteReply(0, 0, None)

    @law("L2")
    async def test_a_gap(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 6)
        await store.queue(start=EARLIEST)
        await self.refused(store, await look(store, start=ids[1], limit=3), "start")
        await (await look(store, limit=1)).assign(store)
        assert (await (await look(store, start=ids[0] + 1, limit=3)).assign(store)).assigned == 3

    @law("L2")
    async def test_beyond_the_end_of_the_log(self, store: Store) -> None:
        await store.publish(*[b"x"] * 3)
        await store.queue(start=EARLIEST)
        stretch = await look(store)
        stretch.end = Offset(stretch.end + 1)
        await self.refused(store, stretch, "end")

    async def test_an_offset_without_an_entry(self, store: Store) -> None:
        """The offset was read from another log."""
        ids = await store.publish(*[b"x"] * 3)
        theirs = await store.publish(b"theirs", tenant=OTHER_TENANT)
        await store.publish(b"x")
        await store.queue(start=EARLIEST)
        stretch = await look(store)
        assert ids[-1] < theirs[0] < stretch.end
        stretch.offsets = sorted({*stretch.offsets, Offset(theirs[0])})
        await self.refused(store, stretch, "offsets")

    @law("T1")
    async def test_another_tenant(self, store: Store) -> None:
        await store.publish(*[b"x"] * 3)
        await store.queue(start=EARLIEST)
        with pytest.raises(UnknownQueue):
            await (await look(store)).assign(store, tenant=OTHER_TENANT)

    async def test_a_dead_letter_queue(self, store: Store) -> None:
        await store.publish(*[b"x"] * 3)
        await store.queue(start=EARLIEST)
        with pytest.raises(Conflict):
            await (await look(store)).assign(store, "q.dlq")

    async def test_an_unknown_queue(self, store: Store) -> None:
        with pytest.raises(UnknownQueue):
            await Stretch(ZERO, ZERO, []).assign(store, "nope")


class TestAssignKeyed(Conformance):
    """A replaced message is assigned once, in its current version."""

    async def test_as_it_is_now(self, store: Store) -> None:
        await store.queue("keeper")
        (first,) = await store.publish(msg(b"1", key="k", color="red"))
        (other,) = await store.publish(msg(b"2", color="blue"))
        await store.publish(msg(b"3", key="k", color="blue"))
        await store.queue("red", "color = 'red'", start=EARLIEST)
        await store.queue("blue", "color = 'blue'", start=EARLIEST)
        red = await (await look(store, "color = 'red'")).assign(store, "red")
        assert (red.scanned, red.assigned) == (2, 0)
        blue = await (await look(store, "color = 'blue'")).assign(store, "blue")
        assert (blue.scanned, blue.assigned) == (3, 2)
        claimed = await store.claim("blue", 9)
        assert [(d.message.id, d.payload) for d in claimed] == [(first, b"3"), (other, b"2")]

    async def test_replaced_after_the_router_looked(self, store: Store) -> None:
        await store.queue("keeper")
        (first,) = await store.publish(msg(b"1", key="k", color="red"))
        await store.queue("red", "color = 'red'", start=EARLIEST)
        await store.queue("blue", "color = 'blue'", start=EARLIEST)
        red, blue = await look(store, "color = 'red'"), await look(store, "color = 'blue'")
        await store.publish(msg(b"2", key="k", color="blue"))
        assert (await red.assign(store, "red")).assigned == 0
        assert (await blue.assign(store, "blue")).assigned == 1
        assert await rest(store, "red") == await rest(store, "blue") == 0
        claimed = await store.claim("blue", 9)
        assert [(d.message.id, d.payload) for d in claimed] == [(first, b"2")]

    async def test_replaced_after_it_was_assigned(self, store: Store) -> None:
        await store.queue("keeper")
        (first,) = await store.publish(msg(b"1", key="k", color="red"))
        await store.publish(b"x")
        await store.queue("late", "color = 'red'", start=EARLIEST)
        stretch = await look(store, "color = 'red'")
        await stretch.assign(store, "late")
        reply = await store.engine.publish(TENANT, "orders", [msg(b"2", key="k", color="red")])
        assert reply.messages[0].replaced
        again = await look(store, "color = 'red'", stretch.end)
        assert (await again.assign(store, "late")).assigned == 0
        claimed = await store.claim("late", 9)
        assert [(d.message.id, d.payload) for d in claimed] == [(first, b"2")]
        await store.publish(msg(b"3", key="k", color="red"))
        assert len(await store.log()) == 4

    async def test_replaced_out_of_the_queue(self, store: Store) -> None:
        await store.queue("keeper")
        await store.publish(msg(b"1", key="k", color="red"), b"x")
        await store.queue("late", "color = 'red'", start=EARLIEST)
        stretch = await look(store, "color = 'red'", limit=1)
        assert (await stretch.assign(store, "late")).assigned == 1
        await store.publish(msg(b"2", key="k", color="blue"))
        assert await store.ids("late", State.AVAILABLE) == []
        assert await rest(store, "late") == 0

    async def test_every_entry_of_a_message_in_one_call(self, store: Store) -> None:
        await store.queue("keeper")
        (first,) = await store.publish(msg(b"0", key="k"))
        for n in range(1, 5):
            await store.publish(msg(b"%d" % n, key="k"), b"x")
        await store.queue("late", start=EARLIEST)
        reply = await (await look(store)).assign(store, "late")
        assert (reply.scanned, reply.assigned) == (9, 5)
        delivery = await store.claim_one("late")
        assert (delivery.message.id, delivery.payload) == (first, b"4")

    async def test_claimed_and_published_anew(self, store: Store) -> None:
        """The key then refers to another message; both are in the log, and both are assigned."""
        await store.queue("keeper")
        ids = await store.publish(msg(b"1", key="k"))
        await store.claim_one("keeper")
        ids += await store.publish(msg(b"2", key="k"))
        await store.queue("late", start=EARLIEST)
        assert (await (await look(store)).assign(store, "late")).assigned == 2
        assert ids_of(await store.claim("late", 9)) == ids
