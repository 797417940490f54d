"""A message's own ``max_attempts``, which overrides that of every queue (C2)."""

from __future__ import annotations

import pytest

from penstock.model.delivery import ReplaySource
from penstock.model.queue import Ordering
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestOwnLimit"]


async def attempts_until_failed(store: Store, queue: str = "q") -> int:
    """Claim and nack the first delivery until it fails; returns the number of grants."""
    for attempts in range(1, 100):
        delivery = await store.claim_one(queue)
        assert delivery.attempts == attempts
        if (await store.nack(delivery)).state is State.FAILED:
            return attempts
    raise AssertionError("it never fails")


class TestOwnLimit(Conformance):
    """The producer decides how often a message is tried."""

    @law("C2")
    @pytest.mark.parametrize("ordering", list(Ordering))
    @pytest.mark.parametrize("own, attempts", [(None, 3), (1, 1), (2, 2), (5, 5)])
    async def test_it_overrides_the_policy_of_every_queue(
        self, store: Store, ordering: Ordering, own: int | None, attempts: int
    ) -> None:
        await store.queue(max_attempts=3, ordering=ordering)
        await store.queue("other", max_attempts=3, ordering=ordering)
        (first,) = await store.publish(msg(b"1", max_attempts=own, partition_key="p"))
        assert await attempts_until_failed(store) == attempts
        assert await attempts_until_failed(store, "other") == attempts
        assert await store.states(first) == {"q": State.FAILED, "other": State.FAILED}
        (shown,) = await store.browse("q", State.FAILED)
        assert shown.message.max_attempts == own

    async def test_it_is_shown_wherever_the_message_is(self, store: Store) -> None:
        await store.queue()
        ids = await store.publish(
            msg(b"1", max_attempts=7, content_type="text/plain", color="red"),
            msg(b"2", max_attempts=65_535),
            msg(b"3"),
            msg(b"4", max_attempts=7),
        )
        limits = [7, 65_535, None, 7]
        assert [m.max_attempts for m in await store.log()] == limits
        assert (await store.engine.message(TENANT, ids[0])).message.max_attempts == 7
        deliveries = await store.claim(limit=9)
        assert [d.message.max_attempts for d in deliveries] == limits
        assert deliveries[0].message.headers == {"color": "red"}
        for delivery in deliveries:
            await store.ack(delivery)
        shown = await store.browse("q", State.DONE)
        assert [s.message.max_attempts for s in shown] == limits

    @law("C2")
    async def test_lapses_count_and_releases_do_not(self, store: Store) -> None:
        await store.queue(max_attempts=9)
        (first,) = await store.publish(msg(max_attempts=2))
        await store.release(await store.claim_one())
        await store.claim_one(lease_ms=1_000)
        store.clock.advance(1_000)
        assert (await store.claim_one(lease_ms=1_000)).attempts == 3
        store.clock.advance(1_000)
        assert await store.claim() == []
        assert await store.ids("q", State.FAILED) == [first]

    async def test_a_lowered_limit_of_the_queue_does_not_apply(self, store: Store) -> None:
        await store.queue(max_attempts=5)
        own, other = await store.publish(msg(max_attempts=3), msg())
        for delivery in await store.claim(limit=2):
            await store.nack(delivery)
        await store.queue(max_attempts=1)
        assert ids_of(await store.claim(limit=2)) == [own]
        assert await store.ids("q", State.FAILED) == [other]

    async def test_dead_letters_are_not_limited(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(max_attempts=1))
        assert await attempts_until_failed(store) == 1
        for attempts in (2, 3, 4):
            letter = await store.claim_one("q.dlq")
            assert letter.attempts == attempts
            await store.nack(letter)

    async def test_a_replay_keeps_it(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(max_attempts=2))
        await attempts_until_failed(store)
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 1)
        assert await attempts_until_failed(store) == 2
        await store.engine.replay(TENANT, "q", ReplaySource.LOG, None, 1)
        assert await attempts_until_failed(store) == 2

    async def test_a_keyed_replacement_replaces_it(self, store: Store) -> None:
        await store.queue(max_attempts=3)
        await store.publish(msg(key="a", max_attempts=1), msg(key="b", max_attempts=1))
        await store.publish(msg(key="a", max_attempts=2), msg(key="b"))
        assert await attempts_until_failed(store) == 2
        assert await attempts_until_failed(store) == 3

    async def test_it_survives_reopening(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(max_attempts=2))
        await store.nack(await store.claim_one())
        await store.reopen()
        assert (await store.nack(await store.claim_one())).state is State.FAILED
