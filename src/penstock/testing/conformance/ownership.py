"""join and leave: partitions are leased to consumers, and fenced by epoch (O1)."""

from __future__ import annotations

import pytest

from penstock.errors import Conflict, UnknownQueue
from penstock.model.delivery import Verdict
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.model.message import MessageId
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.conformance.ready import listen
from penstock.testing.laws import law

__all__ = ["TestOwnership"]


async def ordered(store: Store, *, concurrency: int = 1, max_attempts: int = 5) -> None:
    """Put the ordered queue ``q``."""
    await store.queue(
        ordering=Ordering.PARTITION, partition_concurrency=concurrency, max_attempts=max_attempts
    )


async def fill(store: Store, *partitions: str) -> dict[str, list[MessageId]]:
    """Publish one message per name, in order. Returns the ids by partition."""
    ids = await store.publish(*(msg(p.encode(), partition_key=p) for p in partitions))
    filled: dict[str, list[MessageId]] = {}
    for partition, message_id in zip(partitions, ids, strict=True):
        filled.setdefault(partition, []).append(message_id)
    return filled


async def joined(store: Store, consumer: str) -> list[str]:
    """The names of the consumer's partitions after a heartbeat."""
    return sorted((await store.engine.join(TENANT, "q", consumer)).partitions)


class TestOwnership(Conformance):
    """O1: one owner per partition and epoch; an older epoch is fenced."""

    @law("O1")
    async def test_one_consumer_owns_everything(self, store: Store) -> None:
        await ordered(store)
        await fill(store, *"cab")
        now = store.clock.now()
        own = await store.engine.join(TENANT, "q", "x")
        assert own.consumer == "x"
        assert own.deadline == now + CONSUMER_LEASE_MS
        assert sorted(own.partitions) == ["a", "b", "c"]
        assert sorted(own.partitions.values()) == [1, 2, 3]
        assert (await store.engine.join(TENANT, "q", "x")).partitions == own.partitions

    @law("O1")
    async def test_a_claim_is_a_heartbeat_and_serves_only_own_partitions(
        self, store: Store
    ) -> None:
        await ordered(store)
        ids = await fill(store, *"ab")
        assert ids_of(await store.claim(limit=9, consumer="x")) == [*ids["a"], *ids["b"]]
        assert await store.claim(limit=9, consumer="y") == []

    async def test_the_share_is_p_div_n_and_the_first_get_one_more(self, store: Store) -> None:
        await ordered(store)
        await fill(store, *"abcdefgh")
        assert await joined(store, "x") == list("abcdefgh")
        assert await joined(store, "y") == []
        assert await joined(store, "x") == list("abcd")
        assert await joined(store, "y") == list("efgh")
        assert await joined(store, "w") == []
        assert await joined(store, "x") == list("abc")
        assert await joined(store, "y") == list("ef")
        assert await joined(store, "w") == list("dgh")
        for consumer, owned in [("w", "dgh"), ("x", "abc"), ("y", "ef")]:
            assert await joined(store, consumer) == list(owned)

    async def test_the_share_is_at_least_one(self, store: Store) -> None:
        await ordered(store)
        await fill(store, "a")
        assert await joined(store, "x") == ["a"]
        assert await joined(store, "y") == []
        await fill(store, "b")
        assert await joined(store, "y") == ["b"]
        assert await joined(store, "z") == []

    @law("O1")
    async def test_partitions_of_a_dead_consumer_are_taken_by_name(self, store: Store) -> None:
        names = [f"p{number:02}" for number in range(70)]
        await ordered(store)
        await fill(store, *names)
        assert await joined(store, "x") == names
        store.clock.advance(CONSUMER_LEASE_MS)
        own = await store.engine.join(TENANT, "q", "y")
        epochs = own.partitions
        assert sorted(epochs, key=epochs.__getitem__) == names
        assert sorted(epochs.values()) == list(range(71, 141))

    async def test_a_dead_consumer_leaves_the_first_partitions_to_the_first(
        self, store: Store
    ) -> None:
        names = [f"p{number:02}" for number in range(70)]
        await ordered(store)
        await fill(store, *names)
        assert await joined(store, "x") == names
        store.clock.advance(CONSUMER_LEASE_MS - 1)
        assert await joined(store, "z") == []
        store.clock.advance(1)
        assert await joined(store, "y") == names[:35]
        assert await joined(store, "z") == names[35:]

    async def test_idle_partitions_are_released_first(self, store: Store) -> None:
        await ordered(store)
        await fill(store, *"abcd")
        claimed = await store.claim(limit=9, consumer="x")
        await store.release(claimed[0])
        await store.release(claimed[1])
        await store.engine.join(TENANT, "q", "y")
        assert await joined(store, "x") == ["c", "d"]
        assert await joined(store, "y") == ["a", "b"]
        assert (await store.ack(claimed[2])).ok

    @law("O1")
    async def test_an_older_epoch_is_fenced(self, store: Store) -> None:
        await ordered(store, max_attempts=2)
        ids = await fill(store, *"ab")
        of_a, of_b = await store.claim(limit=9, consumer="x")
        epochs = (await store.engine.join(TENANT, "q", "x")).partitions
        await store.engine.join(TENANT, "q", "y")
        assert await joined(store, "x") == ["a"]
        (taken,) = await store.claim(limit=9, consumer="y")
        assert taken.message.id == ids["b"][0]
        assert (await store.engine.join(TENANT, "q", "y")).partitions["b"] > epochs["b"]
        assert (await store.ack(of_b)).verdict is Verdict.STALE
        assert (await store.ack(of_a)).ok
        assert (await store.nack(taken)).state is State.AVAILABLE

    async def test_a_released_partitions_grants_do_not_count(self, store: Store) -> None:
        await ordered(store, max_attempts=1)
        await fill(store, *"ab")
        await store.claim(limit=9, consumer="x")
        await store.engine.join(TENANT, "q", "y")
        await store.engine.join(TENANT, "q", "x")
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.available, stats.in_flight, stats.failed) == (1, 1, 0)

    @law("O1")
    async def test_a_stale_lease_is_stolen(self, store: Store) -> None:
        await ordered(store)
        ids = await fill(store, *"ab")
        dead = await store.claim(limit=9, consumer="dead", lease_ms=10 * CONSUMER_LEASE_MS)
        store.clock.advance(CONSUMER_LEASE_MS - 1)
        assert await store.claim(limit=9, consumer="y") == []
        store.clock.advance(1)
        taken = await store.claim(limit=9, consumer="y")
        assert ids_of(taken) == [*ids["a"], *ids["b"]]
        assert [d.attempts for d in taken] == [2, 2]
        for delivery in dead:
            assert (await store.nack(delivery)).verdict is Verdict.STALE
        assert (await store.engine.stats(TENANT, "q")).in_flight_by_consumer == {"y": 2}

    async def test_what_a_dead_consumer_held_lapsed(self, store: Store) -> None:
        await ordered(store, max_attempts=1)
        await fill(store, "a")
        await store.claim(consumer="dead", lease_ms=10 * CONSUMER_LEASE_MS)
        store.clock.advance(CONSUMER_LEASE_MS)
        assert await store.claim(consumer="y") == []
        (shown,) = await store.browse("q", State.FAILED)
        assert shown.error == "lease expired"

    @pytest.mark.parametrize("dead_letters", [True, False])
    async def test_a_lapse_that_removes_the_delivery_is_counted(
        self, store: Store, *, dead_letters: bool
    ) -> None:
        await store.queue(ordering=Ordering.PARTITION, max_attempts=1, dead_letters=dead_letters)
        await fill(store, "a")
        await store.claim(consumer="dead", lease_ms=10 * CONSUMER_LEASE_MS)
        ear = listen(store)
        store.clock.advance(CONSUMER_LEASE_MS)
        await joined(store, "y")
        assert ear.taken_back() == {(TENANT, "q"): 1}

    async def test_a_heartbeat_keeps_the_partitions(self, store: Store) -> None:
        await ordered(store)
        await fill(store, "a")
        await joined(store, "x")
        for _ in range(5):
            store.clock.advance(CONSUMER_LEASE_MS - 1)
            assert await joined(store, "x") == ["a"]
            assert await joined(store, "y") == []

    async def test_a_sweep_drops_dead_consumers(self, store: Store) -> None:
        await ordered(store)
        await fill(store, "a")
        await store.claim(consumer="dead", lease_ms=10 * CONSUMER_LEASE_MS)
        store.clock.advance(CONSUMER_LEASE_MS)
        await store.sweep_all()
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.available, stats.in_flight) == (1, 0)
        assert stats.partitions[0].owner is None

    async def test_leaving_releases_at_once(self, store: Store) -> None:
        await ordered(store, max_attempts=1)
        ids = await fill(store, *"ab")
        held = await store.claim(limit=9, consumer="x")
        await store.engine.leave(TENANT, "q", "x")
        assert (await store.ack(held[0])).verdict is Verdict.STALE
        taken = await store.claim(limit=9, consumer="y")
        assert ids_of(taken) == [*ids["a"], *ids["b"]]
        assert [d.attempts for d in taken] == [2, 2]

    async def test_leaving_a_queue_without_order_changes_nothing(self, store: Store) -> None:
        await store.queue("plain")
        await store.engine.leave(TENANT, "plain", "x")
        await store.engine.leave(TENANT, "plain.dlq", "x")

    async def test_strangers_may_leave(self, store: Store) -> None:
        await ordered(store)
        await store.engine.leave(TENANT, "q", "stranger")
        await store.engine.leave(TENANT, "q", "stranger")

    async def test_an_empty_partition_is_forgotten(self, store: Store) -> None:
        await ordered(store)
        await fill(store, *"ab")
        first = await store.engine.join(TENANT, "q", "x")
        await store.ack(await store.claim_one(consumer="x"))
        assert [p.partition for p in (await store.engine.stats(TENANT, "q")).partitions] == ["b"]
        await fill(store, "a")
        own = await store.engine.join(TENANT, "q", "x")
        assert own.partitions["a"] > max(first.partitions.values())
        assert own.partitions["b"] == first.partitions["b"]

    async def test_only_ordered_queues_are_joined(self, store: Store) -> None:
        await store.queue()
        with pytest.raises(Conflict):
            await store.engine.join(TENANT, "q", "x")
        with pytest.raises(UnknownQueue):
            await store.engine.join(TENANT, "nope", "x")
        with pytest.raises(UnknownQueue):
            await store.engine.leave(TENANT, "nope", "x")

    @law("Q1")
    async def test_consumers_belong_to_their_queue(self, store: Store) -> None:
        await ordered(store)
        await store.queue("other", ordering=Ordering.PARTITION)
        await fill(store, *"ab")
        await store.engine.join(TENANT, "other", "y")
        assert await joined(store, "x") == ["a", "b"]

    @law("C5")
    async def test_everything_is_delivered_while_consumers_come_and_go(self, store: Store) -> None:
        await ordered(store, max_attempts=100)
        ids = await fill(store, *"abcdeabcdeabcde")
        got: dict[str, list[MessageId]] = {p: [] for p in "abcde"}
        for turn in range(60):
            consumer = f"c{turn % 3}"
            for delivery in await store.claim(limit=2, consumer=consumer):
                if turn % 7 == 0:
                    await store.engine.leave(TENANT, "q", consumer)
                elif (await store.ack(delivery)).ok:
                    got[delivery.payload.decode()].append(delivery.message.id)
            store.clock.advance(100)
        assert got == ids
