"""next_due: when to poll without a notification (C5).

It may be early and is never late: a consumer that waits for notifications and for this time gets
every delivery as soon as it is available.
"""

from __future__ import annotations

import pytest

from penstock.errors import UnknownQueue
from penstock.model.delivery import ReplaySource
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.model.queue import Backoff, Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    msg,
)
from penstock.testing.laws import law

__all__ = ["TestNextDue", "TestNextDueOfPartitions"]

#: More polls of a queue than any test here should need.
_MAX_LOOKS = 20
#: The longest interval between claims or joins of a consumer of an ordered queue.
_HEARTBEAT_MS = CONSUMER_LEASE_MS // 3


async def due(store: Store, queue: str = "q") -> int | None:
    """The next due time, from now."""
    time = await store.engine.next_due(TENANT, queue)
    return None if time is None else time - store.clock.now()


async def wait(store: Store, queue: str = "q", *, consumer: str = "waiting") -> tuple[int, int]:
    """Claim like a waiting consumer. Returns how long it took, and the message.

    A claim is a heartbeat, so it is also made in time for that.
    """
    begin = store.clock.now()
    for _ in range(_MAX_LOOKS):
        claimed = await store.claim(queue, consumer=consumer)
        if claimed:
            return store.clock.now() - begin, claimed[0].message.id
        in_ms = await due(store, queue)
        assert in_ms is not None, "would wait forever"
        assert in_ms > 0, "would poll in a busy loop"
        store.clock.advance(min(in_ms, _HEARTBEAT_MS))
    raise AssertionError("polls too often")


class TestNextDue(Conformance):
    """Delays and leases."""

    async def test_what_waits_for_nothing_has_none(self, store: Store) -> None:
        await store.queue()
        assert await due(store) is None
        await store.publish(b"x", msg(expires_at=store.clock.now() + 5))
        assert await due(store) is None
        await store.fail_one()
        assert await due(store, "q.dlq") is None

    async def test_of_an_unknown_queue(self, store: Store) -> None:
        await store.queue()
        for tenant, name in [(TENANT, "nope"), (TENANT, "nope.dlq"), (OTHER_TENANT, "q")]:
            with pytest.raises(UnknownQueue):
                await store.engine.next_due(tenant, name)

    @law("C5")
    async def test_the_earliest_delayed_delivery_counts(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        delays = (900, 300, 600)
        ids = await store.publish(*(msg(deliver_at=now + ms) for ms in delays))
        assert await due(store) == 300
        store.clock.advance(299)
        assert await store.claim() == []
        store.clock.advance(1)
        assert await wait(store) == (0, ids[1])
        assert await due(store) == 300
        assert await wait(store) == (300, ids[2])
        assert await wait(store) == (300, ids[0])

    @law("C5")
    async def test_the_earliest_lease_counts(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(b"x", b"y", b"z")
        first = await store.claim_one(lease_ms=5000)
        second = await store.claim_one(lease_ms=1000)
        await store.claim_one(lease_ms=8000)
        assert await due(store) == 1000
        await store.extend(second, 6000)
        assert await due(store) == 5000
        await store.ack(first)
        assert await due(store) == 6000
        assert await wait(store) == (6000, ids[1])

    async def test_nothing_is_left_to_wait_for_after_an_ack(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.ack(await store.claim_one())
        assert await due(store) is None

    @law("C5")
    async def test_a_lease_may_end_before_a_delay_and_after(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        held, late = await store.publish(b"x", msg(deliver_at=now + 2000))
        await store.claim_one(lease_ms=1000)
        assert await due(store) == 1000
        assert await wait(store) == (1000, held)
        assert await wait(store) == (1000, late)

    @law("C5")
    async def test_a_nack_waits_for_its_backoff(self, store: Store) -> None:
        await store.queue(backoff=Backoff(base_ms=4000, max_ms=4000))
        (message_id,) = await store.publish(b"x")
        await store.nack(await store.claim_one())
        assert await wait(store) == (2000, message_id)

    @law("C5")
    async def test_a_replay_with_a_rate_comes_one_by_one(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(b"x", b"y", b"z")
        for _ in ids:
            await store.fail_one()
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9, rate=2)
        assert [await wait(store) for _ in ids] == [(0, ids[0]), (500, ids[1]), (500, ids[2])]

    @law("C5")
    async def test_dead_letters_have_times_of_their_own(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        failed = await store.fail_one()
        dead = await store.claim_one("q.dlq", lease_ms=3000)
        assert (await due(store), await due(store, "q.dlq")) == (None, 3000)
        await store.nack(dead, delay_ms=700)
        assert (await due(store), await due(store, "q.dlq")) == (None, 700)
        assert await wait(store, "q.dlq") == (700, failed.message.id)

    async def test_a_paused_queue_has_none(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x", b"y")
        await store.fail_one()
        await store.claim_one(lease_ms=1000)
        await store.claim_one("q.dlq", lease_ms=2000)
        await store.engine.pause(TENANT, "q", True)
        assert (await due(store), await due(store, "q.dlq")) == (None, 2000)
        await store.engine.pause(TENANT, "q", False)
        await store.engine.pause(TENANT, "q.dlq", True)
        assert (await due(store), await due(store, "q.dlq")) == (1000, None)

    async def test_a_time_in_the_past_ends_with_the_next_claim(self, store: Store) -> None:
        await store.queue(max_attempts=1)
        now = store.clock.now()
        await store.publish(msg(expires_at=now + 2000, deliver_at=now + 1000), b"held")
        await store.claim_one(lease_ms=1000)
        store.clock.advance(5000)
        assert await due(store) == -4000
        assert await store.claim() == []
        assert await due(store) is None

    @law("C5")
    @pytest.mark.parametrize("gone", ["purged", "expired", "replaced"])
    async def test_what_is_gone_is_waited_for_once_at_most(self, store: Store, gone: str) -> None:
        await store.queue(filter="color = 'red'")
        now = store.clock.now()
        expires_at = now + 500 if gone == "expired" else None
        first = msg(key="k", color="red", deliver_at=now + 1000, expires_at=expires_at)
        _, second = await store.publish(first, msg(color="red", deliver_at=now + 3000))
        if gone == "purged":
            await store.engine.purge(TENANT, "q", State.DELAYED, None, 1)
        elif gone == "replaced":
            await store.publish(msg(key="k", color="blue"))
        assert await wait(store) == (3000, second)

    @law("T1")
    async def test_queues_and_tenants_have_their_own(self, store: Store) -> None:
        now = store.clock.now()
        await store.queue()
        await store.queue("other", "color = 'red'")
        await store.queue(tenant=OTHER_TENANT)
        await store.publish(msg(deliver_at=now + 5))
        await store.publish(msg(deliver_at=now + 3), tenant=OTHER_TENANT)
        assert (await due(store), await due(store, "other")) == (5, None)
        assert await store.engine.next_due(OTHER_TENANT, "q") == now + 3

    @law("C5")
    async def test_reopening_keeps_the_times(self, store: Store) -> None:
        await store.queue()
        now = store.clock.now()
        held, dead, late = await store.publish(b"x", b"y", msg(deliver_at=now + 2000))
        await store.claim_one(lease_ms=1500)
        await store.fail_one()
        await store.nack(await store.claim_one("q.dlq"), delay_ms=700)
        await store.reopen()
        assert (await due(store), await due(store, "q.dlq")) == (1500, 700)
        assert await wait(store) == (1500, held)
        assert await wait(store) == (500, late)
        assert await wait(store, "q.dlq") == (0, dead)


class TestNextDueOfPartitions(Conformance):
    """Ordering blocks deliveries, and time unblocks them in more ways."""

    @law("C5")
    async def test_a_silent_consumer_loses_its_partitions(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        (message_id,) = await store.publish(msg(partition_key="a"))
        await store.engine.join(TENANT, "q", "silent")
        assert await wait(store) == (CONSUMER_LEASE_MS, message_id)

    @law("C5")
    async def test_a_silent_consumer_without_partitions_takes_its_share(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(msg(partition_key="a"))
        await store.claim(limit=9, consumer="waiting", lease_ms=10**6)
        store.clock.advance(1)
        await store.engine.join(TENANT, "q", "silent")
        await store.claim(consumer="waiting")
        (message_id,) = await store.publish(msg(partition_key="b"))
        assert await wait(store) == (CONSUMER_LEASE_MS, message_id)

    @law("C5")
    async def test_the_first_expires_while_it_is_delayed(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        now = store.clock.now()
        first = msg(partition_key="a", deliver_at=now + 9000, expires_at=now + 400)
        _, second = await store.publish(first, msg(partition_key="a"))
        assert await wait(store) == (400, second)

    @law("C5")
    async def test_the_first_is_due(self, store: Store) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        now = store.clock.now()
        first, _ = await store.publish(
            msg(partition_key="a", deliver_at=now + 900), msg(partition_key="a")
        )
        assert await wait(store) == (900, first)
