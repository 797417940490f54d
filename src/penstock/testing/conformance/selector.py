"""claim with a selector: what matches is handed out, and everything else stays as it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.model.limits import MAX_CLAIM_BYTES, MAX_CLAIM_SCAN
from penstock.model.message import NewMessage
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestSelector", "TestSelectorOfPartitions", "TestSelectorScan"]

RED = "colour = 'red'"


class TestSelector(Conformance):
    """Which deliveries are handed out."""

    @law("C4")
    async def test_matches_come_in_order_and_the_others_stay(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[painted(n) for n in range(6)])
        (urgent,) = await store.publish(painted(1, priority=9))
        assert ids_of(await store.claim(limit=2, where=RED)) == [urgent, ids[1]]
        shown = await store.browse("q", State.AVAILABLE)
        assert [item.message.id for item in shown] == [ids[0], *ids[2:]]
        assert {item.attempts for item in shown} == {0}
        assert ids_of(await store.claim(limit=9, where=RED)) == [ids[3], ids[5]]
        assert await store.claim(limit=9, where=RED) == []
        assert ids_of(await store.claim(limit=9)) == [ids[0], ids[2], ids[4]]

    async def test_it_reads_the_metadata_as_it_is_now(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(painted(0, key="k"))
        assert await store.claim(where=RED) == []
        await store.publish(painted(1, b"new", key="k"))
        (delivery,) = await store.claim(where=f"{RED} AND key = 'k' AND size = 3")
        assert (delivery.message.id, delivery.payload) == (first, b"new")

    async def test_null_is_not_true(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"without the header")
        assert await store.claim(where="colour <> 'red'") == []
        assert len(await store.claim(where="colour IS NULL")) == 1

    @law("C2")
    async def test_what_comes_back_keeps_its_position_and_attempts(self, store: Store) -> None:
        await store.queue(max_attempts=5)
        ids = await store.publish(*[painted(n) for n in range(4)])
        (held,) = await store.claim(where=RED)
        await store.nack(held, delay_ms=0)
        again = await store.claim(limit=9, where=RED)
        assert [(item.message.id, item.attempts) for item in again] == [(ids[1], 2), (ids[3], 1)]

    @law("C3")
    async def test_time_takes_effect_for_all(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        await store.publish(painted(1, expires_at=now + 10), msg(expires_at=now + 10))
        (late,) = await store.publish(painted(1, deliver_at=now + 50))
        assert len(await store.claim(limit=1, where=RED, lease_ms=1000)) == 1
        store.clock.advance(50)
        assert ids_of(await store.claim(limit=9, where=RED)) == [late]
        assert (await store.engine.stats(TENANT, "q")).expired == 1
        store.clock.advance(1000)
        # The first lease has lapsed, and its message has expired meanwhile.
        assert await store.claim(limit=9, where=RED) == []
        assert (await store.engine.stats(TENANT, "q")).expired == 2

    async def test_only_a_match_fails_for_want_of_attempts(self, store: Store) -> None:
        await store.queue(max_attempts=5)
        red, blue = await store.publish(*[painted(n) for n in (1, 0)])
        for delivery in await store.claim(limit=2):
            await store.nack(delivery, delay_ms=0)
        await store.queue(max_attempts=1)
        assert await store.claim(limit=9, where=RED) == []
        assert [item.message.id for item in await store.browse("q", State.FAILED)] == [red]
        assert [item.message.id for item in await store.browse("q", State.AVAILABLE)] == [blue]

    async def test_dead_letters_and_paused_queues(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[painted(n) for n in range(4)])
        for delivery in await store.claim(limit=9):
            await store.reject(delivery, "broken")
        assert ids_of(await store.claim("q.dlq", 1, where=RED)) == [ids[1]]
        await store.engine.pause(TENANT, "q.dlq", True)
        assert await store.claim("q.dlq", 9, where=RED) == []

    async def test_payloads_are_bounded(self, store: Store) -> None:
        await store.queue()
        half = bytes(MAX_CLAIM_BYTES // 4 + 1)
        ids = [(await store.publish(painted(n, half)))[0] for n in range(10)]
        assert ids_of(await store.claim(limit=9, where=RED)) == ids[1:7:2]
        assert ids_of(await store.claim(limit=9, where=RED)) == ids[7::2]

    @law("C1")
    async def test_concurrent_claims_share_nothing(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[painted(n) for n in range(40)])
        claims = [
            store.claim(limit=5, consumer=f"c{n}", where=None if n % 2 else RED) for n in range(12)
        ]
        parts = await asyncio.gather(*claims)
        assert all(item.message.headers["colour"] == "red" for part in parts[::2] for item in part)
        # Some are left if a claim met others that took what it had found.
        granted = [item for part in parts for item in part] + await store.claim(limit=40)
        assert len({item.receipt for item in granted}) == len(granted)
        assert sorted(ids_of(granted)) == ids


class TestSelectorScan(Conformance):
    """The bound of a scan."""

    @pytest.mark.parametrize("others", [MAX_CLAIM_SCAN - 1, MAX_CLAIM_SCAN])
    async def test_a_scan_ends_at_its_bound(self, store: Store, others: int) -> None:
        await store.queue()
        await store.publish(*[b"x"] * others)
        (red,) = await store.publish(painted(1))
        found = ids_of(await store.claim(limit=2, where=RED))
        assert found == ([red] if others < MAX_CLAIM_SCAN else [])
        # What hides it is claimed, and then it is found.
        await store.claim(limit=2)
        if not found:
            assert ids_of(await store.claim(where=RED)) == [red]

    async def test_a_backlog_is_scanned_after_reopening(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(*[painted(n) for n in range(300)])
        if store.engine.capabilities.persistent:
            await store.reopen()
        assert ids_of(await store.claim(limit=2, where=RED)) == [ids[1], ids[3]]
        where = f"{RED} AND number >= 200"
        assert ids_of(await store.claim(limit=3, where=where)) == [ids[201], ids[203], ids[205]]
        assert len(await store.claim(limit=1000)) == 295


class TestSelectorOfPartitions(Conformance):
    """Ordered queues: the first waiting delivery of a partition decides."""

    async def fill(self, store: Store, plan: str, **policy: Any) -> list[int]:
        """Publish ``a1 b0``: partition and colour of each message."""
        await store.queue(ordering=Ordering.PARTITION, **policy)
        drafts = [painted(int(n), partition_key=p) for p, n in map(tuple, plan.split())]
        return [int(number) for number in await store.publish(*drafts)]

    @law("C4")
    async def test_a_partition_is_passed_over_unless_its_first_matches(self, store: Store) -> None:
        ids = await self.fill(store, "a0 b1 a1 c1 b0 c1")
        granted = await store.claim(limit=9, where=RED)
        assert ids_of(granted) == [ids[1], ids[3]]
        for delivery in granted:
            await store.ack(delivery)
        # b continues with a blue one, c with a red one; a still begins with a blue one.
        assert ids_of(await store.claim(limit=9, where=RED)) == [ids[5]]
        assert ids_of(await store.claim(limit=9)) == [ids[0], ids[4]]

    @law("C4")
    async def test_several_of_a_partition_stop_at_the_first_that_does_not_match(
        self, store: Store
    ) -> None:
        ids = await self.fill(store, "a1 a1 b1 a0 b1 a1 b0", partition_concurrency=4)
        assert ids_of(await store.claim(limit=9, where=RED)) == [ids[0], ids[1], ids[2], ids[4]]
        assert await store.claim(limit=9, where=RED) == []
        assert ids_of(await store.claim(limit=9)) == [ids[3], ids[5], ids[6]]

    @law("C4")
    async def test_a_batch_of_a_partition_ends_at_the_first_that_does_not_match(
        self, store: Store
    ) -> None:
        ids = await self.fill(store, "a1 b0 a1 a0 a1 c1", partition_batch=4)
        granted = await store.claim(limit=9, where=RED)
        assert ids_of(granted) == [ids[0], ids[2], ids[5]]
        for delivery in granted:
            await store.ack(delivery)
        assert await store.claim(limit=9, where=RED) == []
        assert ids_of(await store.claim(limit=9)) == [ids[1], ids[3], ids[4]]

    async def test_others_take_the_place_of_a_match_without_attempts(self, store: Store) -> None:
        ids = await self.fill(store, "a1 b1 c0 d1", max_attempts=5)
        first, *_ = await store.claim(limit=1)
        await store.nack(first, delay_ms=0)
        await store.queue(ordering=Ordering.PARTITION, max_attempts=1)
        assert ids_of(await store.claim(limit=2, where=RED)) == [ids[1], ids[3]]
        assert [item.message.id for item in await store.browse("q", State.FAILED)] == ids[:1]

    async def test_a_replaced_message_decides_by_its_new_metadata(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        (first,) = await store.publish(painted(0, partition_key="a", key="k"))
        assert await store.claim(where=RED) == []
        await store.publish(painted(1, partition_key="a", key="k"))
        assert ids_of(await store.claim(where=RED)) == [first]


def painted(number: int, payload: bytes = b"", **fields: Any) -> NewMessage:
    """A message with two headers; odd numbers are red, even ones blue."""
    return msg(payload, colour="red" if number % 2 else "blue", number=number, **fields)
