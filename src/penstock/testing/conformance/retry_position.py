"""``retry_position: back``: a delivery that is pending again goes behind those that wait (C4)."""

from __future__ import annotations

import pytest

from penstock.errors import QueueNotEmpty
from penstock.filters import parse
from penstock.model.delivery import Ack, Nack, Release, ReplaySource
from penstock.model.message import MessageId
from penstock.model.queue import RetryPosition
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestRetryPosition"]


async def back(store: Store, **policy: object) -> None:
    """Put the queue ``q``."""
    await store.queue(**{"retry_position": RetryPosition.BACK, **policy})  # type: ignore[arg-type]


async def drain(store: Store, queue: str = "q") -> list[MessageId]:
    """The order in which claims of one hand out everything that is available."""
    order = []
    while claimed := await store.claim(queue):
        order += ids_of(claimed)
        await store.ack(claimed[0])
    return order


class TestRetryPosition(Conformance):
    """The position of a delivery after a nack, a release or a lapse."""

    @law("C4")
    @pytest.mark.parametrize("way", ["nack", "release", "lapse"])
    async def test_it_goes_behind_what_waits_and_before_what_comes(
        self, store: Store, way: str
    ) -> None:
        await back(store)
        a, b, c = await store.publish(b"a", b"b", b"c")
        first = await store.claim_one(lease_ms=1000)
        if way == "nack":
            await store.nack(first, delay_ms=0)
        elif way == "release":
            await store.release(first)
        else:
            store.clock.advance(1000)
            await store.sweep_all()
        (d,) = await store.publish(b"d")
        assert ids_of(await store.claim(limit=9)) == [b, c, a, d]

    @law("C4")
    async def test_by_default_it_keeps_its_position(self, store: Store) -> None:
        await store.queue()
        a, b = await store.publish(b"a", b"b")
        await store.nack(await store.claim_one(), delay_ms=0)
        assert ids_of(await store.claim(limit=9)) == [a, b]

    @law("C4")
    async def test_deliveries_that_keep_failing_take_turns(self, store: Store) -> None:
        await back(store, max_attempts=9)
        ids = await store.publish(b"a", b"b", b"c")
        for message_id in ids * 3:
            delivery = await store.claim_one()
            assert delivery.message.id == message_id
            await store.nack(delivery, delay_ms=0)

    @law("C4")
    async def test_priority_still_comes_first(self, store: Store) -> None:
        await back(store)
        low, high, other = await store.publish(msg(priority=4), msg(priority=9), msg(priority=9))
        first = await store.claim_one()
        assert first.message.id == high
        await store.nack(first, delay_ms=0)
        assert await drain(store) == [other, high, low]

    @law("C4")
    async def test_a_delay_does_not_change_the_position(self, store: Store) -> None:
        await back(store)
        a, b = await store.publish(b"a", b"b")
        await store.nack(await store.claim_one(), delay_ms=100)
        (c,) = await store.publish(b"c")
        assert await store.ids("q", State.DELAYED) == [a]
        store.clock.advance(100)
        assert ids_of(await store.claim(limit=9)) == [b, a, c]

    @law("C4")
    async def test_one_call_returns_them_in_its_own_order(self, store: Store) -> None:
        await back(store)
        a, b, c, d = await store.publish(b"a", b"b", b"c", b"d")
        one, two, three = await store.claim(limit=3)
        await store.engine.settle(
            TENANT,
            "q",
            [Nack(three.receipt, delay_ms=0), Release(one.receipt), Nack(two.receipt, delay_ms=0)],
        )
        assert ids_of(await store.claim(limit=9)) == [d, c, a, b]

    async def test_leases_that_lapse_together_return_by_deadline(self, store: Store) -> None:
        await back(store)
        a, b, c = await store.publish(b"a", b"b", b"c")
        await store.claim_one(lease_ms=2000)
        await store.claim(limit=2, lease_ms=1000)
        store.clock.advance(2000)
        assert ids_of(await store.claim(limit=9)) == [b, c, a]

    async def test_a_settle_that_publishes_returns_first(self, store: Store) -> None:
        await back(store)
        a, b = await store.publish(b"a", b"b")
        first = await store.claim_one()
        reply = await store.engine.settle(
            TENANT, "q", [Release(first.receipt)], [Outgoing("orders", [msg(b"c")])]
        )
        (c,) = [one.id for one in reply.published]
        assert ids_of(await store.claim(limit=9)) == [b, a, c]

    @law("S1", "S2")
    async def test_receipts_and_repeated_acks(self, store: Store) -> None:
        await back(store)
        a, _ = await store.publish(b"a", b"b")
        old = await store.claim_one()
        await store.nack(old, delay_ms=0)
        await store.ack(await store.claim_one())
        again = await store.claim_one()
        assert (again.message.id, again.attempts) == (a, 2)
        assert not (await store.ack(old)).ok
        assert (await store.ack(again)).ok
        assert (await store.ack(again)).ok
        assert await store.claim() == []
        assert (await store.ids("q", State.DONE))[0] == a

    @law("D1")
    async def test_dead_letters_are_in_publish_order(self, store: Store) -> None:
        await back(store, max_attempts=2)
        ids = await store.publish(b"a", b"b")
        for delivery in [await store.claim_one() for _ in ids][::-1]:
            await store.nack(delivery, delay_ms=0)
        for _ in ids:
            await store.nack(await store.claim_one(), delay_ms=0)
        assert await store.ids("q", State.FAILED) == ids
        held = await store.claim("q.dlq")
        assert ids_of(held) == ids[:1]
        await store.nack(held[0], delay_ms=0)
        assert ids_of(await store.claim("q.dlq", 9)) == ids

    async def test_a_replay_brings_it_back_to_its_publish_position(self, store: Store) -> None:
        await back(store, max_attempts=2)
        a, b, c = await store.publish(b"a", b"b", b"c")
        await store.nack(await store.claim_one(), delay_ms=0)
        for _ in range(2):
            await store.release(await store.claim_one())
        await store.nack(await store.claim_one(), delay_ms=0)
        assert await store.ids("q", State.FAILED) == [a]
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        assert ids_of(await store.claim(limit=9)) == [a, b, c]

    async def test_browse_shows_the_order_of_claims_in_pages(self, store: Store) -> None:
        await back(store)
        ids = await store.publish(*[b"x"] * 7)
        for delivery in await store.claim(limit=4):
            await store.nack(delivery, delay_ms=0)
        shown: list[MessageId] = []
        cursor = None
        while True:
            page = await store.engine.peek(TENANT, "q", State.AVAILABLE, None, 2, cursor)
            shown += [item.message.id for item in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert shown == [*ids[4:], *ids[:4]]
        assert await drain(store) == shown

    @pytest.mark.parametrize("delay_ms", [0, 100])
    async def test_every_verb_finds_a_moved_delivery(self, store: Store, delay_ms: int) -> None:
        await back(store)
        soon = store.clock.now() + 1000
        a, b, c, d, e = await store.publish(
            msg(b"a"), msg(b"b"), msg(b"c", key="k"), msg(b"d", expires_at=soon), msg(b"e")
        )
        held = await store.claim(limit=4)
        for delivery in held:
            await store.nack(delivery, "broken", delay_ms)
        waiting = State.DELAYED if delay_ms else State.AVAILABLE
        assert await store.states(a) == {"q": waiting}
        assert await store.engine.result(TENANT, "q", a) is None
        assert [event.at for event in await store.engine.history(TENANT, a)]
        assert (await store.engine.cancel(TENANT, a, None)).count == 1
        purged = await store.engine.purge(TENANT, "q", waiting, None, 1)
        assert purged.count == 1
        gone = b if delay_ms else e
        assert await store.states(gone) == {}
        (replaced,) = (await store.engine.publish(TENANT, "orders", [msg(b"C", key="k")])).messages
        assert (replaced.replaced, replaced.id) == (True, c)
        store.clock.advance(1000)
        await store.sweep_all()
        assert await store.states(d) == {"q": State.EXPIRED}
        left = await store.claim(limit=9)
        expected = [(e, b"e"), (c, b"C")] if delay_ms else [(b, b"b"), (c, b"C")]
        assert [(one.message.id, one.payload) for one in left] == expected
        await store.verify()

    @law("C4")
    async def test_a_selector_takes_them_in_the_order_of_claims(self, store: Store) -> None:
        await back(store)
        ids = await store.publish(*(msg(n=n) for n in range(4)))
        for delivery in await store.claim(limit=2):
            await store.nack(delivery, delay_ms=0)
        where = parse("n <> 2")
        claimed = await store.engine.claim(TENANT, "q", "c", 9, None, where)
        assert ids_of(claimed) == [ids[3], ids[0], ids[1]]

    async def test_a_lowered_limit_fails_a_moved_delivery(self, store: Store) -> None:
        await back(store)
        a, b = await store.publish(b"a", b"b")
        await store.nack(await store.claim_one(), delay_ms=0)
        await back(store, max_attempts=1)
        assert ids_of(await store.claim(limit=9)) == [b]
        assert await store.ids("q", State.FAILED) == [a]

    async def test_positions_survive_a_restart(self, store: Store) -> None:
        await back(store)
        a, b, c = await store.publish(b"a", b"b", b"c")
        await store.nack(await store.claim_one(), delay_ms=0)
        await store.nack(await store.claim_one(), delay_ms=100)
        await store.reopen()
        (d,) = await store.publish(b"d")
        store.clock.advance(100)
        assert ids_of(await store.claim(limit=9)) == [c, a, b, d]

    @law("Q2", "G1")
    async def test_the_watermark_and_the_log_wait_for_it(self, store: Store) -> None:
        await back(store, done_retention_s=1)
        a, b = await store.publish(b"a", b"b")
        await store.nack(await store.claim_one(), delay_ms=0)
        second = await store.claim_one()
        assert second.message.id == b
        await store.ack(second)
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.available, stats.watermark) == (1, a - 1)
        store.clock.advance(10**9)
        await store.sweep_all()
        assert await store.ids("q", State.DONE) == []
        (left,) = await store.claim()
        assert (left.message.id, left.payload) == (a, b"a")

    @law("Q2")
    @pytest.mark.parametrize("delay_ms", [0, 100])
    async def test_the_watermark_whatever_the_order_of_the_retries(
        self, store: Store, delay_ms: int
    ) -> None:
        """Also where some came back before the queue had positions."""
        await store.queue()
        ids = await store.publish(*(b"x" for _ in range(6)))
        claimed = await store.claim(limit=6)
        await store.nack(claimed[1], delay_ms=delay_ms)
        await back(store)

        async def watermark() -> int:
            return (await store.engine.stats(TENANT, "q")).watermark

        for index in (5, 3, 2, 0):
            await store.nack(claimed[index], delay_ms=delay_ms)
        assert await watermark() == ids[0] - 1
        await store.ack(claimed[4])
        store.clock.advance(delay_ms)
        for index in (1, 5, 3):
            (delivery,) = await store.claim()
            assert delivery.message.id == ids[index]
            await store.ack(delivery)
            assert await watermark() == ids[0] - 1
        await store.ack(await store.claim_one())
        assert await watermark() == ids[0] - 1
        await store.ack(await store.claim_one())
        assert await watermark() == ids[5]

    async def test_many_that_moved(self, store: Store) -> None:
        await back(store)
        ids = await store.publish(*[b"x"] * 250)
        held = await store.claim(limit=200)
        nacks = [Nack(one.receipt, delay_ms=0) for one in held]
        await store.engine.settle(TENANT, "q", nacks)
        assert ids_of(await store.claim(limit=60)) == [*ids[200:], *ids[:10]]
        acks = [Ack(one.receipt) for one in await store.claim(limit=300)]
        assert len(acks) == 190
        await store.engine.settle(TENANT, "q", acks)
        await store.verify()

    async def test_when_it_can_be_changed(self, store: Store) -> None:
        await store.queue()
        a, b = await store.publish(b"a", b"b")
        await back(store)
        await store.nack(await store.claim_one(), delay_ms=0)
        with pytest.raises(QueueNotEmpty):
            await store.queue()
        assert await drain(store) == [b, a]
        await store.queue()
        c, d = await store.publish(b"c", b"d")
        await store.nack(await store.claim_one(), delay_ms=0)
        assert await drain(store) == [c, d]
