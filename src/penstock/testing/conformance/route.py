"""route: which queue takes a message, and catching up with history (R1)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import QueueFull, UnknownQueue
from penstock.model.limits import (
    MAX_FILTER_BYTES,
    MAX_FILTER_ITEMS,
    MAX_FILTER_NODES,
    MAX_FILTER_PATTERNS,
)
from penstock.model.message import MessageId, Offset
from penstock.model.queue import Start
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

__all__ = ["TestCatchingUp", "TestLargeBatches", "TestRouting", "TestStart"]

EARLIEST = Start(Start.EARLIEST)


async def catch_up(store: Store, queue: str, limit: int = 1000) -> int:
    """Route until the queue is caught up. Returns how many were assigned."""
    assigned = 0
    for _ in range(1000):
        reply = await store.engine.route(TENANT, queue, limit)
        assigned += reply.assigned
        if reply.cursor is None:
            return assigned
    raise AssertionError("the router never catches up")


class TestRouting(Conformance):
    """R1: a message is in a queue if and only if the current filter is TRUE."""

    @law("R1")
    @pytest.mark.parametrize(
        "filter, taken",
        [
            ("TRUE", [0, 1, 2, 3]),
            ("FALSE", []),
            ("color = 'red'", [0]),
            ("color <> 'red'", [1]),
            ("NOT color = 'red'", [1]),
            ("color IS NULL", [2, 3]),
            ("amount >= 10", [1, 3]),
            ("color = 'red' OR amount > 10", [0, 3]),
            ("topic = 'orders'", [0, 1, 2, 3]),
            ("priority > 4", [2]),
            ("matches_words(topic, 'orders')", [0, 1, 2, 3]),
            ("matches_words(topic, 'orders.*')", []),
            ("matches_words(color, '#')", [0, 1]),
            ("+amount > 10.", [3]),
        ],
    )
    async def test_null_is_not_true(self, store: Store, filter: str, taken: list[int]) -> None:
        """Three-valued logic: a comparison with an absent header is neither TRUE nor FALSE."""
        await store.queue(filter=filter)
        ids = await store.publish(
            msg(color="red", amount=5),
            msg(color="blue", amount=10),
            msg(priority=9),
            msg(amount=10.5),
        )
        expected = sorted(ids[n] for n in taken)
        assert sorted(await store.ids("q", State.AVAILABLE)) == expected

    @law("R1")
    async def test_the_largest_filter(self, store: Store) -> None:
        """A filter that fills its limits is stored and evaluated like any other."""
        items = ", ".join(f"'{n}'" for n in range(MAX_FILTER_ITEMS))
        pattern = "x" * MAX_FILTER_PATTERNS
        parts = [f"color IN ({items})", f"color LIKE '{pattern}'"]
        parts += [f"color = 'k{n}'" for n in range((MAX_FILTER_NODES - 6) // 3)]
        largest = " OR ".join(parts)
        largest += " " * (MAX_FILTER_BYTES - len(largest))
        info = await store.queue(filter=largest)
        assert info.policy.filter == largest
        last = str(MAX_FILTER_ITEMS - 1)
        listed, _, like, key = await store.publish(
            msg(color=last), msg(color="no"), msg(color=pattern), msg(color="k7")
        )
        assert await store.ids("q", State.AVAILABLE) == [listed, like, key]

    @law("R1")
    async def test_a_changed_filter_routes_from_then_on(self, store: Store) -> None:
        await store.queue(filter="color = 'red'")
        red, _ = await store.publish(msg(color="red"), msg(color="blue"))
        info = await store.queue(filter="color = 'blue'")
        assert info.filter_version == 2
        _, blue = await store.publish(msg(color="red"), msg(color="blue"))
        assert await store.ids("q", State.AVAILABLE) == [red, blue]

    @law("R1")
    async def test_routers_agree(self, store: Store) -> None:
        """Publishing into a queue and catching it up give the same deliveries."""
        condition = "color = 'red' OR (amount > 3 AND topic LIKE 'or%')"
        await store.queue("play", condition)
        for n in range(12):
            await store.publish(
                msg(color="red", amount=n, priority=n % 3) if n % 4 == 0 else msg(amount=n),
                topic="orders" if n % 2 else "other",
            )
        await store.queue("late", condition, start=EARLIEST)
        await catch_up(store, "late", 5)
        live = await store.browse("play", State.AVAILABLE, payloads=True)
        late = await store.browse("late", State.AVAILABLE, payloads=True)
        assert [(s.message, s.payload) for s in late] == [(s.message, s.payload) for s in live]
        assert live

    @law("Q1")
    async def test_routing_is_per_tenant(self, store: Store) -> None:
        await store.publish(b"mine")
        await store.publish(b"theirs", tenant=OTHER_TENANT)
        await store.queue(start=EARLIEST)
        assert (await store.engine.route(TENANT, "q", 100)).scanned == 1
        assert [d.payload for d in await store.claim(limit=9)] == [b"mine"]

    async def test_an_unknown_queue(self, store: Store) -> None:
        with pytest.raises(UnknownQueue):
            await store.engine.route(TENANT, "nope", 1)


class TestLargeBatches(Conformance):
    """Many messages through many filters take several turns, but are routed atomically."""

    FILTERS = 55
    MESSAGES = 200

    @law("R1")
    async def test_queues_that_change_while_a_batch_is_routed(self, store: Store) -> None:
        """Each queue has what one version of its filter takes: all of it, or none."""
        for number in range(self.FILTERS):
            await store.queue(f"scan{number}", f"amount > {number}")
        batch = [msg(amount=number) for number in range(self.MESSAGES)]
        await asyncio.gather(
            store.publish(*batch),
            store.queue("new", "amount >= 0"),
            store.queue("scan1", "amount < 5"),
            store.engine.delete_queue(TENANT, "scan2"),
        )
        assert len(await store.log()) == self.MESSAGES
        assert len(await store.ids("new", State.AVAILABLE)) in (0, self.MESSAGES)
        assert len(await store.ids("scan1", State.AVAILABLE)) in (5, self.MESSAGES - 2)
        for number in (0, 3, self.FILTERS - 1):
            found = await store.ids(f"scan{number}", State.AVAILABLE)
            assert len(found) == self.MESSAGES - 1 - number


class TestCatchingUp(Conformance):
    """Assigning and advancing the cursor are one commit."""

    @law("R1")
    async def test_history_is_assigned_once(self, store: Store) -> None:
        ids = await store.publish(*(msg(color="red" if n % 2 else "blue") for n in range(10)))
        info = await store.queue(filter="color = 'red'", start=EARLIEST)
        assert info.cursor is not None
        assert info.cursor <= ids[0]
        reds = ids[1::2]
        first = await store.engine.route(TENANT, "q", 4)
        assert (first.scanned, first.assigned) == (4, 2)
        assert first.cursor is not None
        assert ids[3] < first.cursor <= ids[4]
        assert (await store.engine.get_queue(TENANT, "q")).cursor == first.cursor
        assert await store.ids("q", State.AVAILABLE) == reds[:2]
        second = await store.engine.route(TENANT, "q", 100)
        assert (second.scanned, second.assigned, second.cursor) == (6, 3, None)
        third = await store.engine.route(TENANT, "q", 100)
        assert (third.scanned, third.assigned, third.cursor) == (0, 0, None)
        assert ids_of(await store.claim(limit=100)) == reds

    @law("L2")
    async def test_what_is_published_meanwhile_is_not_lost_or_doubled(self, store: Store) -> None:
        """L2: the cursor never passes an entry that appears later."""
        before = await store.publish(*[b"x"] * 5)
        await store.queue(start=EARLIEST)
        await store.engine.route(TENANT, "q", 3)
        during = await store.publish(*[b"y"] * 3)
        assert await store.ids("q", State.AVAILABLE) == before[:3]
        assert (await store.engine.stats(TENANT, "q")).lag == 8
        assert await catch_up(store, "q", 2) == 5
        after = await store.publish(b"z")
        assert await store.ids("q", State.AVAILABLE) == [*before, *during, *after]

    async def test_caught_up_exactly_at_the_end(self, store: Store) -> None:
        await store.publish(*[b"x"] * 4)
        await store.queue(start=EARLIEST)
        assert (await store.engine.route(TENANT, "q", 4)).cursor is None
        (new,) = await store.publish(b"y")
        assert (await store.ids("q", State.AVAILABLE))[-1] == new

    @law("S2")
    async def test_what_is_settled_meanwhile_stays_settled(self, store: Store) -> None:
        await store.publish(*[b"x"] * 4)
        await store.queue(start=EARLIEST)
        await store.engine.route(TENANT, "q", 2)
        await store.ack(await store.claim_one())
        await store.fail_one()
        await catch_up(store, "q")
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.done, stats.failed, stats.available) == (1, 1, 2)

    @law("C4")
    async def test_history_comes_in_claim_order(self, store: Store) -> None:
        low = await store.publish(*[msg(priority=1)] * 3)
        high = await store.publish(*[msg(priority=8)] * 3)
        await store.queue(start=EARLIEST)
        await store.engine.route(TENANT, "q", 4)
        assert ids_of(await store.claim()) == high[:1]
        await catch_up(store, "q")
        assert ids_of(await store.claim(limit=9)) == [*high[1:], *low]

    @law("C3")
    async def test_history_keeps_its_times(self, store: Store) -> None:
        now = store.clock.now()
        delayed, expired, plain = await store.publish(
            msg(deliver_at=now + 100), msg(expires_at=now + 10), b"plain"
        )
        store.clock.advance(20)
        await store.queue(start=EARLIEST)
        await catch_up(store, "q")
        assert await store.ids("q", State.DELAYED) == [delayed]
        assert ids_of(await store.claim(limit=9)) == [plain]
        assert await store.ids("q", State.EXPIRED) == [expired]
        store.clock.advance(80)
        assert ids_of(await store.claim(limit=9)) == [delayed]

    async def test_catching_up_ignores_max_depth(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 5)
        await store.queue(start=EARLIEST, max_depth=2)
        assert await catch_up(store, "q") == 5
        with pytest.raises(QueueFull):
            await store.publish(b"y")
        assert ids_of(await store.claim(limit=9)) == ids

    async def test_the_filter_in_force_decides(self, store: Store) -> None:
        red, blue = await store.publish(msg(color="red"), msg(color="blue"))
        await store.queue(filter="color = 'red'", start=EARLIEST)
        await store.engine.route(TENANT, "q", 1)
        info = await store.queue(filter="color = 'blue'")
        assert info.cursor is not None
        await catch_up(store, "q")
        assert await store.ids("q", State.AVAILABLE) == [red, blue]

    async def test_a_replaced_message_is_routed_as_it_is_now(self, store: Store) -> None:
        await store.queue("keeper")
        (first,) = await store.publish(msg(b"1", key="k", color="red"))
        (other,) = await store.publish(msg(b"2", color="blue"))
        await store.publish(msg(b"3", key="k", color="blue"))
        await store.queue("red", "color = 'red'", start=EARLIEST)
        await store.queue("blue", "color = 'blue'", start=EARLIEST)
        assert await catch_up(store, "red", 1) == 0
        assert await catch_up(store, "blue", 1) == 2
        claimed = await store.claim("blue", 9)
        assert [(d.message.id, d.payload) for d in claimed] == [(first, b"3"), (other, b"2")]

    @law("Q1")
    async def test_catching_up_touches_no_other_queue(self, store: Store) -> None:
        await store.queue("a")
        await store.publish(*[b"x"] * 5)
        await store.claim("a", 2)
        before = await store.picture("a")
        await store.queue("late", start=EARLIEST)
        await catch_up(store, "late", 2)
        assert await store.picture("a") == before

    async def test_watermark_and_lag_wait_for_the_router(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 4)
        await store.queue(filter="FALSE", start=EARLIEST)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.lag, stats.watermark < ids[0]) == (4, True)
        await store.engine.route(TENANT, "q", 2)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.lag, ids[1] <= stats.watermark < ids[2]) == (2, True)
        await catch_up(store, "q")
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.lag, stats.watermark) == (0, await store.engine.log_end(TENANT) - 1)

    @opened_with(auto_create=True)
    async def test_a_queue_that_is_catching_up_counts_as_a_match(self, store: Store) -> None:
        """Otherwise an unwanted queue would be created and fill up next to it."""
        await store.publish(b"old", topic="other")
        await store.queue("late", start=EARLIEST)
        (new,) = await store.publish(b"new")
        names = [q.name for q in await store.engine.list_queues(TENANT)]
        assert names == ["late", "other"]
        await catch_up(store, "late")
        assert new in await store.ids("late", State.AVAILABLE)

    async def test_who_is_behind(self, store: Store) -> None:
        assert await store.engine.behind() == ()
        for tenant in (TENANT, OTHER_TENANT):
            await store.publish(b"x", b"y", tenant=tenant)
        await store.queue("now")
        await store.queue("late", start=EARLIEST)
        await store.queue("also", "FALSE", start=EARLIEST)
        await store.queue("late", start=EARLIEST, tenant=OTHER_TENANT)
        every = ((TENANT, "also"), (TENANT, "late"), (OTHER_TENANT, "late"))
        assert await store.engine.behind() == every
        await store.engine.route(TENANT, "late", 1)
        assert await store.engine.behind() == every
        await catch_up(store, "late")
        assert await store.engine.behind() == ((TENANT, "also"), (OTHER_TENANT, "late"))
        await catch_up(store, "also")
        await store.engine.delete_queue(OTHER_TENANT, "late")
        assert await store.engine.behind() == ()

    async def test_who_is_behind_after_reopening(self, store: Store) -> None:
        await store.publish(b"x", b"y")
        await store.queue("now")
        await store.queue("late", start=EARLIEST)
        await store.reopen()
        assert await store.engine.behind() == ((TENANT, "late"),)


class TestStart(Conformance):
    """The initial cursor of a new queue."""

    async def ready(self, store: Store) -> list[MessageId]:
        ids = []
        for _ in range(4):
            ids += await store.publish(b"x")
            store.clock.advance(10)
        return ids

    async def test_latest_is_caught_up_at_once(self, store: Store) -> None:
        await self.ready(store)
        assert (await store.queue(start=Start(Start.LATEST))).cursor is None
        assert await store.claim() == []
        (new,) = await store.publish(b"new")
        assert ids_of(await store.claim(limit=9)) == [new]

    async def test_an_offset_is_included(self, store: Store) -> None:
        ids = await self.ready(store)
        info = await store.queue(start=Start(Start.OFFSET, ids[2]))
        assert info.cursor == Offset(ids[2])
        await catch_up(store, "q")
        assert await store.ids("q", State.AVAILABLE) == ids[2:]

    async def test_an_offset_between_entries_takes_the_next(self, store: Store) -> None:
        ids = await self.ready(store)
        await store.queue(start=Start(Start.OFFSET, ids[1] + 1))
        await catch_up(store, "q")
        assert await store.ids("q", State.AVAILABLE) == ids[2:]

    @pytest.mark.parametrize("back, taken", [(40, 4), (25, 2), (20, 2), (19, 1), (1, 0), (0, 0)])
    async def test_a_time_is_included(self, store: Store, back: int, taken: int) -> None:
        ids = await self.ready(store)
        await store.queue(start=Start(Start.TIME, store.clock.now() - back))
        await catch_up(store, "q")
        assert await store.ids("q", State.AVAILABLE) == ids[len(ids) - taken :]

    async def test_a_start_beyond_the_end_is_caught_up(self, store: Store) -> None:
        await self.ready(store)
        end = await store.engine.log_end(TENANT)
        later = store.clock.now() + 10**6
        for n, start in enumerate(
            [Start(Start.OFFSET, end), Start(Start.OFFSET, end + 10**9), Start(Start.TIME, later)]
        ):
            assert (await store.queue(f"q{n}", start=start)).cursor is None
        (new,) = await store.publish(b"new")
        for n in range(3):
            assert ids_of(await store.claim(f"q{n}", 9)) == [new]

    async def test_earliest_of_an_empty_log_is_caught_up(self, store: Store) -> None:
        assert (await store.queue(start=EARLIEST)).cursor is None
        (new,) = await store.publish(b"new")
        assert ids_of(await store.claim(limit=9)) == [new]

    async def test_start_matters_on_creation_only(self, store: Store) -> None:
        await store.queue()
        await self.ready(store)
        assert len(await store.claim(limit=9)) == 4
        assert (await store.queue(start=EARLIEST)).cursor is None
