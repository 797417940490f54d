"""Verbs that end many deliveries of a queue with a dead-letter topic, on any engine.

No commit may copy more than ``MAX_COPIED_BYTES`` and one message, and every ended delivery has its
copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from msgspec.structs import replace

from penstock.filters import parse
from penstock.model.delivery import Delivery, Nack, Reject
from penstock.model.limits import CONSUMER_LEASE_MS, MAX_COPIES
from penstock.model.message import NewMessage
from penstock.model.queue import Backoff, Ordering, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage import copy_limit
from penstock.storage.contract import Engine
from penstock.testing.clock import FakeClock

__all__ = ["COUNT", "POLICY", "BulkCopies", "D", "Q", "Scene", "T", "rejects"]

T, Q, D = "t", "q", "d"
POLICY: Final = QueuePolicy(
    filter="topic = 'orders'",
    max_attempts=1,
    backoff=Backoff(0, 0),
    dead_letter_topic="dead",
    dead_letter_expired=True,
)
LEASE_MS: Final = 1_000
#: In place of the real limit, so that the tests need not copy megabytes.
LIMIT: Final = 1024 * 1024
#: Each message has a segment of its own in a database.
SIZE: Final = 200 * 1024
#: Three commits of copies.
COUNT: Final = 15


class Scene:
    """A store with a queue that copies. ``copied`` has a list of payload sizes per commit."""

    def __init__(
        self, engine: Engine, clock: FakeClock, copied: Callable[[], list[list[int]]]
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.copied = copied

    async def put_queue(self, policy: QueuePolicy = POLICY) -> None:
        await self.engine.put_queue(T, Q, policy, Start())

    async def publish(self, *, ttl_ms: int | None = None) -> None:
        expires_at = None if ttl_ms is None else self.clock.now() + ttl_ms
        new = NewMessage(b"x" * SIZE, {"n": 1}, partition_key="p", expires_at=expires_at)
        await self.engine.publish(T, "orders", [new] * COUNT)

    async def claim(self, count: int = COUNT, *, lease_ms: int = LEASE_MS) -> list[Delivery]:
        """Claim several times: one claim hands out a bounded number of bytes."""
        claimed: list[Delivery] = []
        while len(claimed) < count:
            more = await self.engine.claim(T, Q, "c", min(1_000, count - len(claimed)), lease_ms)
            assert more
            claimed += more
        return claimed

    async def claimed(self) -> list[Delivery]:
        """Publish and claim."""
        await self.publish()
        return await self.claim()

    async def check(self, act: Callable[[], Awaitable[object]]) -> None:
        """``act`` ends all deliveries, in several commits. It may have to be repeated."""
        begin, ended = len(self.copied()), 0
        while ended < COUNT:
            await act()
            before, ended = ended, await self.ended()
            assert ended > before
        sizes = [sum(commit) for commit in self.copied()[begin:] if commit]
        assert len(sizes) >= COUNT * SIZE // LIMIT
        assert max(sizes) < LIMIT + SIZE
        assert (await self.engine.stats(T, D)).available == COUNT

    async def ended(self) -> int:
        """How many deliveries have ended; the others still wait or are in flight."""
        stats = await self.engine.stats(T, Q)
        return stats.failed + stats.expired


def rejects(claimed: list[Delivery]) -> list[Reject]:
    return [Reject(delivery.receipt) for delivery in claimed]


async def by_sweep(scene: Scene) -> None:
    await scene.engine.sweep()


async def by_claim(scene: Scene) -> None:
    assert await scene.engine.claim(T, Q, "c", 10, LEASE_MS) == []


async def by_selective_claim(scene: Scene) -> None:
    assert await scene.engine.claim(T, Q, "c", 10, LEASE_MS, parse("n = 1")) == []


class BulkCopies:
    """The tests; a subclass has the fixture ``scene``."""

    @pytest.fixture(autouse=True)
    def small_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(copy_limit, "MAX_COPIED_BYTES", LIMIT)

    async def test_settle(self, scene: Scene) -> None:
        settlements = rejects(await scene.claimed())

        async def act() -> None:
            reply = await scene.engine.settle(T, Q, settlements)
            assert [one.receipt for one in reply.outcomes] == [s.receipt for s in settlements]
            assert {one.state for one in reply.outcomes} == {State.FAILED}

        await scene.check(act)

    async def test_concurrent_settles(self, scene: Scene) -> None:
        settlements = rejects(await scene.claimed())

        async def act() -> None:
            parts = [settlements[n : n + 2] for n in range(0, COUNT, 2)]
            replies = await asyncio.gather(*[scene.engine.settle(T, Q, part) for part in parts])
            for part, reply in zip(parts, replies, strict=True):
                assert [one.receipt for one in reply.outcomes] == [s.receipt for s in part]
                assert {one.state for one in reply.outcomes} == {State.FAILED}

        await scene.check(act)

    async def test_settle_and_claim(self, scene: Scene) -> None:
        settlements = rejects(await scene.claimed())
        await scene.check(
            lambda: scene.engine.settle_and_claim(T, Q, settlements, "c", 10, LEASE_MS)
        )

    @pytest.mark.parametrize("ordering", Ordering)
    @pytest.mark.parametrize("end", [by_sweep, by_claim, by_selective_claim])
    @pytest.mark.parametrize("way", ["lapse", "expire"])
    async def test_passing_time(
        self, scene: Scene, way: str, end: Callable[[Scene], Awaitable[None]], ordering: Ordering
    ) -> None:
        await scene.put_queue(replace(POLICY, ordering=ordering, partition_concurrency=COUNT))
        if way == "lapse":
            await scene.claimed()
        else:
            await scene.publish(ttl_ms=LEASE_MS)
        scene.clock.advance(LEASE_MS)
        await scene.check(lambda: end(scene))

    @pytest.mark.parametrize("ordering", Ordering)
    @pytest.mark.parametrize("end", [by_claim, by_selective_claim])
    async def test_a_lowered_limit(
        self, scene: Scene, end: Callable[[Scene], Awaitable[None]], ordering: Ordering
    ) -> None:
        policy = replace(POLICY, ordering=ordering, partition_concurrency=COUNT, max_attempts=2)
        await scene.put_queue(policy)
        claimed = await scene.claimed()
        await scene.engine.settle(T, Q, [Nack(one.receipt, "bad", 0) for one in claimed])
        await scene.put_queue(replace(policy, max_attempts=1))
        await scene.check(lambda: end(scene))

    @pytest.mark.parametrize("verb", ["leave", "join", "claim", "sweep"])
    async def test_lost_partitions(self, scene: Scene, verb: str) -> None:
        """One partition with many deliveries in flight is taken back in several commits."""
        lease_ms = 2 * CONSUMER_LEASE_MS
        policy = replace(
            POLICY,
            ordering=Ordering.PARTITION,
            partition_concurrency=COUNT,
            lease_ms=lease_ms,
            max_lease_ms=lease_ms,
        )
        await scene.put_queue(policy)
        await scene.publish(ttl_ms=LEASE_MS)
        await scene.claim(lease_ms=lease_ms)
        scene.clock.advance(LEASE_MS if verb == "leave" else CONSUMER_LEASE_MS)

        async def act() -> None:
            match verb:
                case "leave":
                    await scene.engine.leave(T, Q, "c")
                case "join":
                    await scene.engine.join(T, Q, "other")
                case "claim":
                    assert await scene.engine.claim(T, Q, "other", 10, LEASE_MS) == []
                case _:
                    await scene.engine.sweep()

        await scene.check(act)

    async def test_small_copies_are_counted(self, scene: Scene) -> None:
        count = 2 * MAX_COPIES + 10
        await scene.engine.publish(T, "orders", [NewMessage(b"")] * count)
        claimed = await scene.claim(count)
        begin = len(scene.copied())
        await scene.engine.settle(T, Q, rejects(claimed))
        copied = [len(commit) for commit in scene.copied()[begin:] if commit]
        assert copied == [MAX_COPIES, MAX_COPIES, 10]
