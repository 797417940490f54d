"""``dead_letter_topic``: failed and expired deliveries are copied to a topic (D1, S3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import TooLarge
from penstock.model.delivery import (
    Ack,
    Delivery,
    Nack,
    Reject,
    ReplaySource,
    Settlement,
    Verdict,
)
from penstock.model.limits import (
    CONSUMER_LEASE_MS,
    MAX_COPIED_BYTES,
    MAX_SETTLE_COPIED_BYTES,
)
from penstock.model.message import HeaderValue
from penstock.model.queue import Ordering, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
)
from penstock.testing.conformance.ready import listen
from penstock.testing.laws import law

__all__ = ["TestDeadLetterTopic", "TestExpiredToTopic"]

LEASE_MS = 1_000
MEBIBYTE = 1024 * 1024


async def copying(store: Store, *, max_attempts: int = 1, **policy: Any) -> None:
    """Put ``q``, which copies what fails to the topic ``dead``, and ``d``, which takes that."""
    await store.queue("d", "topic = 'dead'")
    await store.queue(
        filter="topic = 'orders'", max_attempts=max_attempts, dead_letter_topic="dead", **policy
    )


async def payloads(store: Store, queue: str = "d") -> list[bytes | None]:
    """The payloads that wait in a queue."""
    return [s.payload for s in await store.browse(queue, State.AVAILABLE, payloads=True)]


async def claim_all(store: Store, count: int) -> list[Delivery]:
    """Claim until there are ``count`` deliveries: one claim hands out a bounded number of bytes."""
    claimed: list[Delivery] = []
    while len(claimed) < count:
        more = await store.claim(limit=count)
        assert more
        claimed += more
    return claimed


async def only_headers(store: Store, queue: str = "d") -> Mapping[str, HeaderValue]:
    """The headers of the only message that waits in a queue."""
    (shown,) = await store.browse(queue, State.AVAILABLE)
    return shown.message.headers


class TestDeadLetterTopic(Conformance):
    """What fails is appended to the topic, in the commit that fails it."""

    @law("D1", "S3")
    @pytest.mark.parametrize("ordering", Ordering)
    @pytest.mark.parametrize(
        "way", ["nack", "reject", "lapse at a claim", "lapse at a sweep", "exhaust"]
    )
    async def test_what_fails_is_copied(self, store: Store, way: str, ordering: Ordering) -> None:
        await copying(store, max_attempts=1 + (way == "exhaust"), ordering=ordering)
        sent = msg(b"body", partition_key="p", priority=7, content_type="text/plain", color="red")
        (message_id,) = await store.publish(sent)
        delivery = await store.claim_one(lease_ms=LEASE_MS)
        at = store.clock.advance(5)
        error, transition = "bad", way.split(maxsplit=1)[0]
        if way == "nack":
            assert (await store.nack(delivery, error)).state is State.FAILED
        elif way == "reject":
            assert (await store.reject(delivery, error)).state is State.FAILED
        elif way == "exhaust":
            await store.nack(delivery, error)
            await copying(store, ordering=ordering)
            assert await store.claim() == []
            error = "max_attempts was lowered to 1"
        else:
            at = store.clock.advance(LEASE_MS)
            if way == "lapse at a sweep":
                await store.sweep_all()
            else:
                assert await store.claim() == []
            error = "lease expired"
        assert await store.states(message_id) == {"q": State.FAILED}
        copy = await store.claim_one("d")
        assert copy.payload == b"body"
        assert copy.message.headers == {
            "color": "red",
            "dead_letter_original_queue": "q",
            "dead_letter_original_topic": "orders",
            "dead_letter_message_id": message_id,
            "dead_letter_state": "failed",
            "dead_letter_transition": transition,
            "dead_letter_attempts": 1,
            "dead_letter_error": error,
            "dead_letter_at": at,
            "dead_letter_hops": 1,
        }
        message = copy.message
        assert (message.topic, message.published_at, message.deliver_at) == ("dead", at, at)
        assert (message.partition_key, message.priority) == ("p", 7)
        assert (message.content_type, message.expires_at) == ("text/plain", None)
        assert [m.topic for m in await store.log()] == ["orders", "dead"]

    async def test_only_failures_are_copied(self, store: Store) -> None:
        await copying(store, max_attempts=3)
        now = store.clock.now()
        await store.publish(*[b"x"] * 5, msg(expires_at=now + 10))
        acked, released, nacked, cancelled = await store.claim(limit=4)
        await store.ack(acked)
        await store.release(released)
        await store.nack(nacked)
        await store.engine.cancel(TENANT, cancelled.message.id)
        store.clock.advance(10)
        await store.sweep_all()
        await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 10)
        assert {m.topic for m in await store.log()} == {"orders"}

    async def test_a_settlement_that_fails_nothing_copies_nothing(self, store: Store) -> None:
        await copying(store)
        await store.publish(b"x")
        delivery = await store.claim_one()
        await store.reject(delivery)
        assert (await store.reject(delivery)).verdict is Verdict.STALE
        dead = await store.claim_one("q.dlq")
        await store.reject(dead)
        assert len(await payloads(store)) == 1

    @law("D1")
    async def test_the_last_error_is_copied_and_cut(self, store: Store) -> None:
        await copying(store, max_attempts=2)
        await store.publish(b"a", b"b")
        await store.nack(await store.claim_one(), "é" * 2_000)
        await store.nack(await store.claim_one())
        assert (await only_headers(store))["dead_letter_error"] == "é" * 1_024
        assert (await only_headers(store))["dead_letter_attempts"] == 2
        await store.reject(await store.claim_one())
        _, second = await store.browse("d", State.AVAILABLE)
        assert "dead_letter_error" not in second.message.headers

    async def test_copies_of_one_settle_are_in_message_order(self, store: Store) -> None:
        await copying(store)
        await store.publish(b"1", b"2", b"3")
        first, second, third = await store.claim(limit=3)
        receipts = [third.receipt, first.receipt, second.receipt]
        await store.engine.settle(TENANT, "q", [Reject(receipt) for receipt in receipts])
        assert await payloads(store) == [b"1", b"2", b"3"]

    @law("S3")
    async def test_with_a_publish_the_copies_follow_its_messages(self, store: Store) -> None:
        await copying(store)
        await store.queue("n", "topic = 'next'")
        await store.publish(b"1", b"2")
        first, second = await store.claim(limit=2)
        outgoing = [Outgoing("next", [msg(b"n")])]
        reply = await store.engine.settle(TENANT, "q", [Nack(first.receipt, "bad")], outgoing)
        assert len(reply.published) == 1
        assert [m.topic for m in await store.log()] == ["orders", "orders", "next", "dead"]
        both = [Reject(first.receipt), Reject(second.receipt)]
        reply = await store.engine.settle(TENANT, "q", both, outgoing)
        assert [o.verdict for o in reply.outcomes] == [Verdict.STALE, Verdict.ABORTED]
        assert len(await store.log()) == 4

    @law("D1", "S3")
    async def test_a_settle_may_fail_more_than_one_commit_copies(self, store: Store) -> None:
        await copying(store)
        count = MAX_COPIED_BYTES // MEBIBYTE + 2
        ids = await store.publish(*[msg(bytes(MEBIBYTE), n=n) for n in range(count)])
        claimed = await claim_all(store, count)
        rejects = [Reject(delivery.receipt, "bad") for delivery in claimed]
        reply = await store.engine.settle(TENANT, "q", [*rejects, rejects[0]])
        assert [outcome.receipt for outcome in reply.outcomes[:-1]] == [
            delivery.receipt for delivery in claimed
        ]
        assert {outcome.state for outcome in reply.outcomes[:-1]} == {State.FAILED}
        assert reply.outcomes[-1].verdict is Verdict.STALE
        assert await store.ids("q", State.FAILED) == ids
        copies = [shown.message for shown in await store.browse("d", State.AVAILABLE)]
        assert [copy.headers["n"] for copy in copies] == list(range(count))
        assert [copy.headers["dead_letter_message_id"] for copy in copies] == ids
        assert {copy.size for copy in copies} == {MEBIBYTE}

    @law("S3", "E1")
    async def test_a_settle_with_publish_is_one_commit(self, store: Store) -> None:
        """It cannot continue in another commit, so it is refused before anything changes."""
        await copying(store)
        count = MAX_SETTLE_COPIED_BYTES // MEBIBYTE + 1
        await store.publish(*[msg(bytes(MEBIBYTE))] * count)
        rejects = [Reject(delivery.receipt) for delivery in await claim_all(store, count)]
        outgoing = [Outgoing("next", [msg(b"n")])]
        with pytest.raises(TooLarge) as caught:
            await store.engine.settle(TENANT, "q", rejects, outgoing)
        assert (caught.value.field, caught.value.limit) == ("settlements", MAX_SETTLE_COPIED_BYTES)
        assert (await store.engine.stats(TENANT, "q")).in_flight == count
        assert len(await store.log()) == count
        # Acks copy nothing, and what is left fits.
        acked: list[Settlement] = [Ack(rejects[0].receipt), *rejects[1:]]
        assert (await store.engine.settle(TENANT, "q", acked, outgoing)).published
        assert (await store.engine.stats(TENANT, "d")).available == count - 1

    @law("D1")
    async def test_without_dead_letters_only_the_topic_gets_it(self, store: Store) -> None:
        await copying(store, dead_letters=False)
        (message_id,) = await store.publish(b"x")
        await store.fail_one()
        assert await store.states(message_id) == {}
        assert await payloads(store) == [b"x"]

    async def test_several_queues_share_a_topic(self, store: Store) -> None:
        await store.queue("d", "dead_letter_original_queue = 'b'")
        for name in ("a", "b"):
            await store.queue(name, "topic = 'orders'", dead_letter_topic="dead")
        await store.publish(b"x")
        await store.fail_one("a")
        assert await payloads(store) == []
        await store.fail_one("b")
        assert await payloads(store) == [b"x"]
        assert [m.topic for m in await store.log()] == ["orders", "dead", "dead"]

    @law("D1")
    async def test_copies_of_one_key_do_not_replace_each_other(self, store: Store) -> None:
        await copying(store)
        for payload in (b"1", b"2"):
            await store.publish(msg(payload, key="k"))
            await store.fail_one()
        assert await payloads(store) == [b"1", b"2"]
        for shown in await store.browse("d", State.AVAILABLE):
            assert (shown.message.key, shown.message.headers["dead_letter_key"]) == (None, "k")

    @law("P3")
    async def test_the_newest_values_of_a_key_are_copied(self, store: Store) -> None:
        await copying(store)
        (message_id,) = await store.publish(msg(b"old", key="k", color="red"))
        assert await store.publish(msg(b"new", key="k", color="blue")) == [message_id]
        await store.fail_one()
        assert await payloads(store) == [b"new"]
        headers = await only_headers(store)
        assert (headers["color"], headers["dead_letter_message_id"]) == ("blue", message_id)

    async def test_every_failure_of_a_message_is_copied(self, store: Store) -> None:
        await copying(store)
        await store.publish(b"x")
        await store.fail_one(error="first")
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        await store.fail_one(error="second")
        shown = await store.browse("d", State.AVAILABLE)
        errors = [s.message.headers["dead_letter_error"] for s in shown]
        assert errors == ["first", "second"]

    async def test_a_message_of_the_topic_is_not_copied(self, store: Store) -> None:
        await store.queue(max_attempts=1, dead_letter_topic="dead")
        await store.publish(b"x")
        await store.fail_one()
        copy = await store.fail_one()
        assert copy.message.topic == "dead"
        assert await store.states(copy.message.id) == {"q": State.FAILED}
        assert len(await store.log()) == 2

    async def test_queues_that_copy_to_each_other_stop(self, store: Store) -> None:
        await store.queue("a", "topic = 'left'", max_attempts=1, dead_letter_topic="right")
        await store.queue("b", "topic = 'right'", max_attempts=1, dead_letter_topic="left")
        await store.publish(b"x", topic="left")
        failed = 0
        while any([await store.claim(name) for name in "ab"]):
            failed += 1
            store.clock.advance(60_000)
            await store.sweep_all()
        assert failed == 17
        assert (await store.log())[-1].headers["dead_letter_hops"] == 16
        (first, *_, last) = await store.browse("a", State.FAILED, payloads=True)
        assert last.payload == first.payload == b"x"
        assert last.message.headers["dead_letter_original_queue"] == "b"

    @law("C5")
    async def test_the_queues_of_the_copy_are_ready(self, store: Store) -> None:
        await copying(store)
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=LEASE_MS)
        ear = listen(store)
        store.clock.advance(LEASE_MS)
        await store.sweep_all()
        assert "d" in ear.heard()
        await store.publish(b"y")
        ear.heard()
        await store.fail_one()
        assert "d" in ear.heard()
        assert delivery.message.topic == "orders"

    async def test_a_queue_that_catches_up_takes_copies(self, store: Store) -> None:
        await copying(store)
        await store.publish(b"x")
        await store.queue("late", "topic = 'dead'", start=Start(Start.EARLIEST))
        await store.fail_one()
        while (await store.engine.route(TENANT, "late", 100)).cursor is not None:
            pass
        assert await payloads(store, "late") == [b"x"]

    @law("S3")
    async def test_a_partition_that_changes_its_owner(self, store: Store) -> None:
        await copying(store, ordering=Ordering.PARTITION)
        await store.publish(msg(b"x", partition_key="a"))
        await store.claim_one(consumer="one", lease_ms=CONSUMER_LEASE_MS * 3)
        store.clock.advance(CONSUMER_LEASE_MS)
        await store.engine.join(TENANT, "q", "two")
        assert await payloads(store) == [b"x"]

    @law("T1")
    async def test_a_copy_stays_in_its_tenant(self, store: Store) -> None:
        await store.queue("d", "topic = 'dead'", tenant=OTHER_TENANT)
        await copying(store)
        await store.publish(b"x")
        await store.fail_one()
        assert await store.ids("d", State.AVAILABLE, tenant=OTHER_TENANT) == []
        assert await store.log(tenant=OTHER_TENANT) == []

    @law("P1")
    async def test_a_copy_and_the_policy_survive(self, store: Store) -> None:
        await copying(store, dead_letter_expired=True)
        await store.publish(b"x", b"y")
        await store.fail_one()
        await store.reopen()
        policy = (await store.engine.get_queue(TENANT, "q")).policy
        assert (policy.dead_letter_topic, policy.dead_letter_expired) == ("dead", True)
        await store.fail_one()
        assert await payloads(store) == [b"x", b"y"]

    async def test_a_changed_topic_counts_from_then_on(self, store: Store) -> None:
        await copying(store)
        await store.publish(*[b"x"] * 3)
        await store.fail_one()
        await store.queue(filter="topic = 'orders'", dead_letter_topic="other")
        await store.fail_one()
        await store.queue(filter="topic = 'orders'")
        await store.fail_one()
        assert [m.topic for m in await store.log()][3:] == ["dead", "other"]


class TestExpiredToTopic(Conformance):
    """``dead_letter_expired`` copies expired deliveries too."""

    @law("D1", "S3")
    @pytest.mark.parametrize("ordering", Ordering)
    @pytest.mark.parametrize("way", ["claim", "sweep", "delayed", "nack", "release", "lapse"])
    async def test_what_expires_is_copied(self, store: Store, way: str, ordering: Ordering) -> None:
        await copying(store, max_attempts=5, dead_letter_expired=True, ordering=ordering)
        now = store.clock.now()
        deliver_at = now + 500 if way == "delayed" else None
        await store.publish(msg(b"x", expires_at=now + LEASE_MS, deliver_at=deliver_at))
        held = way in ("nack", "release", "lapse")
        delivery = await store.claim_one(lease_ms=LEASE_MS) if held else None
        at = store.clock.advance(LEASE_MS)
        if way == "nack" and delivery is not None:
            assert (await store.nack(delivery, "late")).state is State.EXPIRED
        elif way == "release" and delivery is not None:
            assert (await store.release(delivery)).state is State.EXPIRED
        elif way == "claim":
            assert await store.claim() == []
        else:
            await store.sweep_all()
        headers = await only_headers(store)
        assert headers["dead_letter_state"] == "expired"
        assert headers["dead_letter_transition"] == (way if held else "expire")
        assert headers["dead_letter_attempts"] == (1 if held else 0)
        assert headers.get("dead_letter_error") == ("late" if way == "nack" else None)
        assert headers["dead_letter_at"] == at
        (copy,) = await store.browse("d", State.AVAILABLE)
        assert copy.message.expires_at is None

    @law("S3")
    async def test_what_a_leaving_consumer_holds(self, store: Store) -> None:
        await copying(store, dead_letter_expired=True, ordering=Ordering.PARTITION)
        await store.publish(msg(b"x", expires_at=store.clock.now() + LEASE_MS))
        await store.claim_one(lease_ms=2 * LEASE_MS)
        store.clock.advance(LEASE_MS)
        await store.engine.leave(TENANT, "q", "c")
        headers = await only_headers(store)
        found = headers["dead_letter_state"], headers["dead_letter_transition"]
        assert found == ("expired", "release")

    async def test_the_ttl_of_the_queue_and_that_of_the_topic(self, store: Store) -> None:
        await copying(store, dead_letter_expired=True, message_ttl_ms=500)
        await store.engine.put_topic(TENANT, "dead", TopicPolicy(default_ttl_ms=2_000))
        await store.publish(b"x")
        now = store.clock.advance(500)
        await store.sweep_all()
        (copy,) = await store.browse("d", State.AVAILABLE)
        assert copy.message.expires_at == now + 2_000

    async def test_many_expire_in_one_sweep(self, store: Store) -> None:
        await copying(store, dead_letter_expired=True, message_ttl_ms=500, dead_letters=False)
        await store.publish(*[b"%d" % n for n in range(200)])
        store.clock.advance(500)
        await store.sweep_all(limit=30)
        found = await payloads(store)
        assert len(found) == 200
        assert set(found) == {b"%d" % n for n in range(200)}

    @law("C5")
    async def test_many_expire_before_a_claim(self, store: Store) -> None:
        await copying(store, dead_letter_expired=True)
        expires_at = store.clock.now() + 500
        for begin in range(0, 900, 300):
            batch = [msg(b"%d" % n, expires_at=expires_at) for n in range(begin, begin + 300)]
            await store.publish(*batch)
        (last,) = await store.publish(b"last")
        store.clock.advance(500)
        ear = listen(store)
        claimed = await store.claim()
        while not claimed:
            assert "q" in ear.heard()
            claimed = await store.claim()
        assert ids_of(claimed) == [last]
        await store.sweep_all()
        found = await payloads(store)
        assert len(found) == 900
        assert set(found) == {b"%d" % n for n in range(900)}
