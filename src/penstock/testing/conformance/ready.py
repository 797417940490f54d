"""The listener: waiters on a queue are notified when a claim may return more (C5).

An engine may notify too often. Notifications of unrelated queues are only checked where the verb
affects a single queue.
"""

from __future__ import annotations

import pytest

from penstock.model.delivery import Ack, ReplaySource
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.model.queue import Ordering, Start
from penstock.storage.contract import Outgoing
from penstock.storage.listener import Listener
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

__all__ = ["Ear", "TestLapsed", "TestReady", "listen"]


class Ear(Listener):
    """Records its notifications."""

    def __init__(self) -> None:
        self._ready: set[tuple[str, str]] = set()
        self._lapsed: dict[tuple[str, str], int] = {}
        self._ended: set[tuple[str, str]] = set()
        self.commits: list[tuple[int, float]] = []

    def ready(self, tenant: str, queue: str) -> None:
        self._ready.add((tenant, queue))

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        assert count > 0
        self._lapsed[tenant, queue] = self._lapsed.get((tenant, queue), 0) + count

    def ended(self, tenant: str, queue: str) -> None:
        self._ended.add((tenant, queue))

    def committed(self, records: int, seconds: float) -> None:
        self.commits.append((records, seconds))

    def heard(self, tenant: str = TENANT) -> set[str]:
        """The queues that were ready since the last call."""
        found = {queue for of, queue in self._ready if of == tenant}
        self._ready = {place for place in self._ready if place[0] != tenant}
        return found

    def ended_queues(self, tenant: str = TENANT) -> set[str]:
        """The queues with deliveries that ended since the last call."""
        found = {queue for of, queue in self._ended if of == tenant}
        self._ended.clear()
        return found

    def taken_back(self) -> dict[tuple[str, str], int]:
        """How many leases lapsed, by tenant and queue, since the last call."""
        found, self._lapsed = self._lapsed, {}
        return found


def listen(store: Store) -> Ear:
    """Record the store's notifications from now on."""
    ear = store.engine.listener = Ear()
    return ear


class TestReady(Conformance):
    """What makes a queue ready, verb by verb."""

    @law("C5")
    async def test_a_publish_makes_the_queues_it_goes_to_ready(self, store: Store) -> None:
        await store.queue("orders", "topic = 'orders'")
        await store.queue("all")
        await store.queue("bills", "topic = 'bills'")
        await store.queue("all", tenant=OTHER_TENANT)
        ear = listen(store)
        await store.publish(b"x", b"y")
        assert ear.heard() == {"orders", "all"}
        assert ear.heard(OTHER_TENANT) == set()
        await store.publish(b"z", topic="bills")
        assert ear.heard() == {"bills", "all"}

    @law("C5")
    async def test_every_publish_is_told(self, store: Store) -> None:
        """A claim in between may have emptied the queue."""
        await store.queue()
        ear = listen(store)
        for _ in range(3):
            await store.publish(b"x")
            assert ear.heard() == {"q"}
            await store.claim_one()
            ear.heard()

    @law("C5")
    @opened_with(auto_create=True)
    async def test_a_queue_that_a_publish_creates_is_ready(self, store: Store) -> None:
        ear = listen(store)
        await store.publish(b"x", topic="new")
        assert "new" in ear.heard()

    @law("C5")
    async def test_a_delayed_publish_moves_the_next_due_time(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        ear = listen(store)
        for deliver_at in (now + 5000, now + 3000, now + 1):
            await store.publish(msg(deliver_at=deliver_at))
            assert ear.heard() == {"q"}
            assert await store.engine.next_due(TENANT, "q") == deliver_at

    @law("C5")
    async def test_a_publish_with_a_settle_is_told(self, store: Store) -> None:
        await store.queue("in", "topic = 'in'")
        await store.queue("out", "topic = 'out'")
        await store.publish(b"x", topic="in")
        delivery = await store.claim_one("in")
        ear = listen(store)
        await store.engine.settle(
            TENANT, "in", [Ack(delivery.receipt)], [Outgoing("out", [msg(b"y")])]
        )
        assert ear.heard() == {"out"}

    @law("C5")
    async def test_what_comes_back_at_once_is_told(self, store: Store) -> None:
        await store.queue()
        await store.queue("other", "FALSE")
        await store.publish(b"x")
        delivery = await store.claim_one()
        ear = listen(store)
        await store.nack(delivery)
        assert ear.heard() == {"q"}
        delivery = await store.claim_one()
        ear.heard()
        await store.release(delivery)
        assert ear.heard() == {"q"}

    @law("C5")
    async def test_a_nack_with_a_delay_before_the_lease_ends_is_told(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one(lease_ms=30_000)
        ear = listen(store)
        await store.nack(delivery, delay_ms=2000)
        assert ear.heard() == {"q"}
        assert await store.engine.next_due(TENANT, "q") == store.clock.now() + 2000

    @law("C5")
    async def test_a_failed_delivery_makes_the_dead_letters_ready(self, store: Store) -> None:
        await store.queue(max_attempts=1)
        await store.publish(b"x", b"y")
        first, second = await store.claim(limit=2)
        ear = listen(store)
        await store.reject(first)
        assert ear.heard() == {"q.dlq"}
        await store.nack(second)
        assert ear.heard() == {"q.dlq"}

    @law("C5")
    async def test_dead_letters_that_come_back_are_told(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.fail_one()
        ear = listen(store)
        for give_back in (store.nack, store.release, store.reject):
            dead = await store.claim_one("q.dlq")
            ear.heard()
            await give_back(dead)
            assert ear.heard() == {"q.dlq"}

    async def test_an_ack_is_not_told(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        delivery = await store.claim_one()
        ear = listen(store)
        await store.ack(delivery)
        assert ear.heard() == set()

    @law("C5")
    @pytest.mark.parametrize("rate", [None, 1])
    async def test_a_replay_is_told(self, store: Store, rate: int | None) -> None:
        await store.queue()
        await store.publish(b"x", b"y")
        await store.fail_one()
        await store.ack(await store.claim_one())
        ear = listen(store)
        for source in (ReplaySource.FAILED, ReplaySource.DONE):
            await store.engine.replay(TENANT, "q", source, None, 9, rate=rate)
            assert ear.heard() == {"q"}

    async def test_a_dry_run_is_not_told(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.fail_one()
        ear = listen(store)
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9, dry_run=True)
        assert ear.heard() == set()

    @law("C5")
    async def test_routing_is_told(self, store: Store) -> None:
        await store.queue("other", "FALSE")
        await store.publish(b"x", b"y", b"z")
        await store.queue("late", start=Start(Start.EARLIEST))
        ear = listen(store)
        for _ in range(3):
            await store.engine.route(TENANT, "late", 1)
            assert ear.heard() == {"late"}

    @law("C5")
    async def test_a_resumed_queue_is_told(self, store: Store) -> None:
        await store.queue("other")
        await store.queue(paused=True)
        await store.publish(b"x")
        await store.fail_one("other")
        await store.engine.pause(TENANT, "other.dlq", True)
        ear = listen(store)
        for name in ("q", "other.dlq"):
            await store.engine.pause(TENANT, name, False)
            assert ear.heard() == {name}
            assert len(await store.claim(name)) == 1
            ear.heard()

    @law("C5")
    async def test_a_changed_policy_is_told(self, store: Store) -> None:
        await store.queue(paused=True)
        await store.queue("other")
        await store.publish(b"x")
        ear = listen(store)
        await store.queue(paused=False)
        assert ear.heard() == {"q"}

    @law("C5")
    async def test_a_lease_is_told_when_it_ends_first(self, store: Store) -> None:
        """Another consumer that waits without a timeout would miss it."""
        await store.queue()
        await store.publish(b"x", b"y")
        ear = listen(store)
        await store.claim_one(lease_ms=9000)
        assert "q" in ear.heard()
        second = await store.claim_one(lease_ms=5000)
        assert "q" in ear.heard()
        await store.extend(second, 1000)
        assert "q" in ear.heard()
        assert await store.engine.next_due(TENANT, "q") == store.clock.now() + 1000

    @law("C5")
    async def test_time_that_a_sweep_lets_take_effect_is_told(self, store: Store) -> None:
        """A consumer that claims before the sweep and reads ``next_due`` after it misses both."""
        await store.queue()
        await store.publish(b"held")
        await store.claim_one(lease_ms=1000)
        await store.publish(msg(deliver_at=store.clock.now() + 2000))
        ear = listen(store)
        for _ in range(2):
            store.clock.advance(1000)
            assert ear.heard() == set()
            await store.sweep_all()
            assert ear.heard() == {"q"}

    @law("C5")
    async def test_time_that_a_claim_lets_take_effect_is_told(self, store: Store) -> None:
        """The claim may take less than what has become available."""
        await store.queue()
        deliver_at = store.clock.now() + 1000
        await store.publish(msg(deliver_at=deliver_at), msg(deliver_at=deliver_at))
        ear = listen(store)
        store.clock.advance(1000)
        await store.claim_one()
        assert ear.heard() == {"q"}

    async def test_committed_work_is_told(self, store: Store) -> None:
        if not store.engine.capabilities.persistent:
            pytest.skip("nothing is made durable")
        await store.queue()
        ear = listen(store)
        await store.publish(b"x")
        published = len(ear.commits)
        assert published > 0
        await store.claim_one()
        assert len(ear.commits) > published
        assert all(records > 0 and seconds >= 0 for records, seconds in ear.commits)

    async def test_a_listener_that_is_set_later_is_the_one(self, store: Store) -> None:
        await store.queue()
        first = listen(store)
        assert store.engine.listener is first
        second = listen(store)
        await store.publish(b"x")
        assert (first.heard(), second.heard()) == (set(), {"q"})

    @law("C5")
    async def test_a_queue_that_was_there_before_reopening_is_told(self, store: Store) -> None:
        await store.queue()
        await store.reopen()
        ear = listen(store)
        await store.publish(b"x")
        assert ear.heard() == {"q"}

    @law("C5")
    async def test_a_replacement_brings_back_what_was_past_its_time(self, store: Store) -> None:
        await store.queue()
        (first,) = await store.publish(msg(b"a", key="k", expires_at=store.clock.now() + 1000))
        ear = listen(store)
        store.clock.advance(60_000)
        # No claim or sweep came: the delivery still exists, but could not be claimed.
        await store.publish(msg(b"b", key="k"))
        assert "q" in ear.heard()
        assert ids_of(await store.claim()) == [first]


class TestLapsed(Conformance):
    """Lapsed leases are counted."""

    async def test_a_claim_that_takes_leases_back_says_so(self, store: Store) -> None:
        await store.queue()
        await store.publish(*[b"x"] * 3)
        await store.claim(limit=3, lease_ms=1000)
        ear = listen(store)
        store.clock.advance(999)
        await store.claim()
        assert ear.taken_back() == {}
        store.clock.advance(1)
        await store.claim()
        assert ear.taken_back() == {(TENANT, "q"): 3}
        await store.claim()
        assert ear.taken_back() == {}

    async def test_a_sweep_says_so_of_every_queue(self, store: Store) -> None:
        await store.queue()
        await store.queue("last", max_attempts=1)
        await store.queue(tenant=OTHER_TENANT)
        await store.publish(b"x", b"y")
        await store.publish(b"z", tenant=OTHER_TENANT)
        await store.fail_one()
        for name in ("q", "last", "q.dlq"):
            await store.claim(name, 9, lease_ms=1000)
        await store.claim(tenant=OTHER_TENANT, lease_ms=1000)
        store.clock.advance(1000)
        ear = listen(store)
        await store.sweep_all()
        assert ear.taken_back() == {
            (TENANT, "q"): 1,
            (TENANT, "last"): 2,
            (TENANT, "q.dlq"): 1,
            (OTHER_TENANT, "q"): 1,
        }
        assert "last.dlq" in ear.heard()

    @pytest.mark.parametrize("verb", ["claim", "join", "sweep"])
    async def test_what_a_silent_consumer_held_is_counted(self, store: Store, verb: str) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(msg(partition_key="a"), msg(partition_key="b"))
        await store.claim(limit=2, consumer="x", lease_ms=10 * CONSUMER_LEASE_MS)
        store.clock.advance(CONSUMER_LEASE_MS)
        ear = listen(store)
        if verb == "claim":
            await store.claim(limit=2, consumer="y")
        elif verb == "join":
            await store.engine.join(TENANT, "q", "y")
        else:
            await store.sweep_all()
        assert ear.taken_back() == {(TENANT, "q"): 2}
