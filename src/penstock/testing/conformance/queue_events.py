"""``events``: a queue reports the ends of its deliveries in the commits that make them (S3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.model.delivery import Ack, Nack, Reject, Settlement
from penstock.model.message import NewMessage
from penstock.model.queue import Ordering
from penstock.model.queue_events import EVENTS_TOPIC
from penstock.model.states import State
from penstock.storage.contract import Outgoing
from penstock.testing.conformance.harness import OTHER_TENANT, TENANT, Conformance, Store, msg
from penstock.testing.laws import law

__all__ = ["TestQueueEvents"]

LEASE_MS = 1_000
ALL = ("done", "failed", "expired")


async def reporting(
    store: Store, events: tuple[str, ...] = ALL, *, max_attempts: int = 1, **policy: Any
) -> None:
    """Put ``q``, which reports its deliveries, and ``e``, which takes the events."""
    await store.queue("e", f"topic = '{EVENTS_TOPIC}'")
    await store.queue(filter="topic = 'orders'", max_attempts=max_attempts, events=events, **policy)


async def reported(store: Store) -> list[dict[str, Any]]:
    """The bodies of the events, by publish order."""
    shown = await store.browse("e", State.AVAILABLE, payloads=True)
    return [msgspec.json.decode(one.payload or b"", type=dict[str, Any]) for one in shown]


class TestQueueEvents(Conformance):
    """Done, failed and expired deliveries are reported, each once."""

    @law("S3")
    @pytest.mark.parametrize("ordering", Ordering)
    @pytest.mark.parametrize("result", [None, b"42"])
    async def test_an_ack_is_reported(
        self, store: Store, ordering: Ordering, result: bytes | None
    ) -> None:
        await reporting(store, ordering=ordering)
        (message_id,) = await store.publish(b"secret")
        delivery = await store.claim_one()
        at = store.clock.advance(5)
        await store.ack(delivery, result)
        event = await store.claim_one("e")
        assert msgspec.json.decode(event.payload) == {
            "event": "message.done",
            "at": at,
            "queue": "q",
            "message_id": message_id,
            "topic": "orders",
            "attempts": 1,
        }
        assert event.message.headers == {"event": "message.done", "queue": "q"}
        assert event.message.content_type == "application/json"
        assert event.message.topic == EVENTS_TOPIC
        await store.ack(delivery, result)
        assert await reported(store) == [], "an ack that is repeated is not reported again"

    @law("S3")
    @pytest.mark.parametrize("keeps", [True, False])
    @pytest.mark.parametrize("way", ["nack", "reject", "lapse", "sweep", "exhaust"])
    async def test_a_failure_is_reported(self, store: Store, way: str, *, keeps: bool) -> None:
        await reporting(store, max_attempts=1 + (way == "exhaust"), dead_letters=keeps)
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=LEASE_MS)
        error = "é bad"
        if way == "nack":
            await store.nack(delivery, error)
        elif way == "reject":
            await store.reject(delivery, error)
        elif way == "exhaust":
            await store.nack(delivery, error)
            await reporting(store, dead_letters=keeps)
            assert await store.claim() == []
            error = "max_attempts was lowered to 1"
        else:
            store.clock.advance(LEASE_MS)
            if way == "sweep":
                await store.sweep_all()
            else:
                assert await store.claim() == []
            error = "lease expired"
        (event,) = await reported(store)
        assert event == {
            "event": "message.failed",
            "at": store.clock.now(),
            "queue": "q",
            "message_id": message_id,
            "topic": "orders",
            "attempts": 1,
            "error": error,
            "dead_letter": keeps,
        }
        (shown,) = await store.browse("e", State.AVAILABLE)
        assert shown.message.headers["dead_letter"] is keeps

    @law("S3")
    @pytest.mark.parametrize("way", ["available", "delayed", "in_flight"])
    async def test_an_expiry_is_reported(self, store: Store, way: str) -> None:
        await reporting(store, max_attempts=3)
        now = store.clock.now()
        delay = 10 if way == "delayed" else 0
        await store.publish(msg(expires_at=now + LEASE_MS, deliver_at=now + delay))
        if way == "in_flight":
            delivery = await store.claim_one(lease_ms=5 * LEASE_MS)
            store.clock.advance(LEASE_MS)
            await store.nack(delivery, "late")
        else:
            store.clock.advance(LEASE_MS)
            await store.sweep_all()
        (event,) = await reported(store)
        attempts, error = (1, "late") if way == "in_flight" else (0, None)
        assert event["event"] == "message.expired"
        assert (event["attempts"], event["error"]) == (attempts, error)

    async def test_only_the_events_of_the_policy_are_reported(self, store: Store) -> None:
        await reporting(store, ("failed",))
        await store.publish(b"a", b"b", msg(expires_at=store.clock.now() + 5))
        first, second, _ = await store.claim(limit=3)
        await store.ack(first)
        await store.reject(second)
        store.clock.advance(10)
        await store.sweep_all()
        assert [event["event"] for event in await reported(store)] == ["message.failed"]

    @law("Q1", "T1")
    async def test_what_is_not_reported(self, store: Store) -> None:
        """Returns, cancels, purges, dead letters, other queues and tenants, and events."""
        await reporting(store)
        await store.queue("e", f"topic = '{EVENTS_TOPIC}'", events=ALL)
        await store.queue("other", "topic = 'orders'")
        await store.publish(b"a", b"b", b"c", b"d")
        failed, cancelled, released, _ = await store.claim(limit=4)
        await store.reject(failed)
        await store.engine.cancel(TENANT, cancelled.message.id, "q")
        await store.release(released)
        await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 10)
        for delivery in await store.claim("other", limit=4):
            await store.ack(delivery)
        dead = await store.claim_one("q.dlq")
        await store.ack(dead)
        (event,) = await store.claim("e", limit=9)
        await store.ack(event)
        assert [m.topic for m in await store.log()].count(EVENTS_TOPIC) == 1
        assert await store.log(tenant=OTHER_TENANT) == []

    @law("S3")
    async def test_many_in_one_settle_are_in_message_order(self, store: Store) -> None:
        await reporting(store)
        await store.publish(*[b"x"] * 300)
        deliveries = await store.claim(limit=300)
        ends: list[Settlement] = [
            Ack(d.receipt) if n % 3 else Reject(d.receipt) if n % 2 else Nack(d.receipt)
            for n, d in enumerate(reversed(deliveries))
        ]
        await store.engine.settle(TENANT, "q", ends)
        ids = [event["message_id"] for event in await reported(store)]
        assert ids == [d.message.id for d in deliveries]

    @law("S3")
    async def test_with_a_publish_all_or_nothing(self, store: Store) -> None:
        await reporting(store)
        await store.publish(b"a", b"b")
        first, second = await store.claim(limit=2)
        more = [Outgoing("orders", [NewMessage(b"more")])]
        await store.ack(second)
        bad: list[Settlement] = [Ack(first.receipt), Reject(second.receipt)]
        await store.engine.settle(TENANT, "q", bad, more)
        assert len(await reported(store)) == 1
        await store.engine.settle(TENANT, "q", [Ack(first.receipt)], more)
        assert [event["message_id"] for event in await reported(store)] == [
            second.message.id,
            first.message.id,
        ]

    async def test_a_dead_letter_copy_and_an_event(self, store: Store) -> None:
        await store.queue("d", "topic = 'dead'")
        await reporting(store, dead_letter_topic="dead")
        await store.publish(b"body")
        await store.reject(await store.claim_one(), "bad")
        assert [m.topic for m in await store.log()] == ["orders", "dead", EVENTS_TOPIC]
        assert (await store.claim_one("d")).payload == b"body"

    @pytest.mark.parametrize("copies", [0, 1, 15, 16, 99])
    async def test_a_loop_of_copies_and_events_ends(self, store: Store, copies: int) -> None:
        """A queue of dead letters reports its failures, and a queue of events copies its own."""
        await store.queue("d", "topic = 'dead'", events=("failed",))
        await store.queue("e", f"topic = '{EVENTS_TOPIC}'", dead_letter_topic="dead")
        await store.publish(msg(dead_letter_hops=copies) if copies else msg(), topic="dead")
        for number in range(max(1, 17 - copies)):
            await store.fail_one("d")
            (event,) = await store.browse("e", State.AVAILABLE)
            assert event.message.headers.get("dead_letter_hops", 0) == copies + number
            await store.fail_one("e")
        assert await store.claim("d") == await store.claim("e") == []

    async def test_an_event_creates_no_queue_and_nothing_refuses_it(self, store: Store) -> None:
        await store.queue(filter="topic = 'orders'", events=ALL)
        await store.publish(b"a", b"b")
        first, second = await store.claim(limit=2)
        await store.ack(first)
        assert [info.name for info in await store.engine.list_queues(TENANT)] == ["q"]
        await store.queue("e", f"topic = '{EVENTS_TOPIC}'", max_depth=1)
        await store.engine.publish(TENANT, EVENTS_TOPIC, [NewMessage(b"full")])
        await store.ack(second)
        assert (await store.engine.stats(TENANT, "e")).available == 2

    @law("S3")
    async def test_events_survive_reopening(self, store: Store) -> None:
        await reporting(store)
        await store.publish(b"x")
        await store.ack(await store.claim_one())
        await store.reopen()
        info = await store.engine.get_queue(TENANT, "q")
        assert info.policy.events == ALL
        assert len(await reported(store)) == 1
