"""Claim, the broker's part: bounds, and the throughput limit.

The limit is a token bucket that is charged only for what was handed out: polling an empty
queue costs nothing. It gives fewer deliveries, never an error.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.scope import BrokerOptions, Scope
from penstock.errors import BadInput
from penstock.model.delivery import Delivery, Ownership
from penstock.model.limits import (
    MAX_CLAIM,
    MAX_LEASE_MS,
    check_name,
    check_queue_name,
    shown,
)
from penstock.storage.contract import Engine

__all__ = ["Claiming", "Throttle", "check_claim", "check_lease"]

#: How long a queue's limit is remembered before the engine is asked again; another process
#: may have changed it.
_REMEMBER_MS: Final = 1_000
_ANONYMOUS: Final = "anonymous"


class Claiming(Scope):
    """The verbs that take deliveries, and that consumers of ordered queues live by."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        super().__init__(engine, options, tenant)
        self._throttles: dict[str, Throttle] = {}

    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        consumer: str = _ANONYMOUS,
        lease_ms: int | None = None,
    ) -> list[Delivery]:
        """Lease up to ``limit`` deliveries."""
        check_queue_name(queue)
        check_name(consumer, "consumer")
        check_claim(limit, lease_ms)
        throttle = await self._throttle(queue)
        allowed = throttle.take(limit, self._clock.now())
        if not allowed:
            # Nothing to hand out, but a queue that is gone, or a store, is still said to be.
            await self._engine.get_queue(self.tenant, queue)
            return []
        given = 0
        try:
            deliveries = await self._engine.claim(self.tenant, queue, consumer, allowed, lease_ms)
            given = len(deliveries)
        finally:
            throttle.give_back(allowed - given)
        return deliveries

    async def join(self, queue: str, consumer: str) -> Ownership:
        """Join an ordered queue, or heartbeat."""
        check_queue_name(queue)
        return await self._engine.join(self.tenant, queue, check_name(consumer, "consumer"))

    async def leave(self, queue: str, consumer: str) -> None:
        """Release the consumer's partitions at once."""
        check_queue_name(queue)
        await self._engine.leave(self.tenant, queue, check_name(consumer, "consumer"))

    async def _throttle(self, queue: str) -> Throttle:
        now = self._clock.now()
        throttle = self._throttles.get(queue)
        if throttle is None or not throttle.is_fresh(now):
            info = await self._engine.get_queue(self.tenant, queue)
            limit = info.policy.throughput_limit
            # Another claim may have been quicker.
            throttle = self._throttles.setdefault(queue, Throttle(limit, now))
            throttle.remember(limit, now)
        return throttle


def check_claim(limit: object, lease_ms: object) -> None:
    """Refuse a claim whose numbers are out of bounds."""
    if type(limit) is not int or not 1 <= limit <= MAX_CLAIM:
        raise BadInput(
            f"limit is {shown(limit)}; it is a whole number from 1 to {MAX_CLAIM}.",
            field="limit",
            limit=MAX_CLAIM,
        )
    if lease_ms is not None:
        check_lease(lease_ms)


def check_lease(lease_ms: object) -> None:
    """Refuse a lease that is not a positive number of milliseconds; policies clamp it."""
    if type(lease_ms) is not int or not 1 <= lease_ms <= MAX_LEASE_MS:
        raise BadInput(
            f"lease_ms is {shown(lease_ms)}; it is a whole number from 1 to {MAX_LEASE_MS}.",
            field="lease_ms",
            limit=MAX_LEASE_MS,
        )


class Throttle:
    """The token bucket of one queue. Tokens are thousandths, so that time divides evenly."""

    __slots__ = ("_filled_at", "_milli_tokens", "rate", "remembered_at")

    def __init__(self, rate: int | None, now: int) -> None:
        self.rate = rate
        self.remembered_at = now
        self._filled_at = now
        self._milli_tokens = 0 if rate is None else rate * 1000

    def doubt(self) -> None:
        """The rate may have changed: read it again before the next claim."""
        self.remembered_at = -_REMEMBER_MS

    def is_fresh(self, now: int) -> bool:
        """Whether the rate may still be trusted."""
        return 0 <= now - self.remembered_at < _REMEMBER_MS

    def remember(self, rate: int | None, now: int) -> None:
        """Take a rate that was just read; what is left of the bucket stays."""
        if rate != self.rate:
            self._milli_tokens = 0 if rate is None else rate * 1000
            self._filled_at = now
        self.rate = rate
        self.remembered_at = now

    def take(self, limit: int, now: int) -> int:
        """Take tokens for up to ``limit`` deliveries; returns for how many."""
        if self.rate is None:
            return limit
        elapsed = max(0, now - self._filled_at)
        self._milli_tokens = min(self.rate * 1000, self._milli_tokens + elapsed * self.rate)
        self._filled_at = now
        taken = min(limit, self._milli_tokens // 1000)
        self._milli_tokens -= taken * 1000
        return taken

    def give_back(self, count: int) -> None:
        """``count`` of what was taken was not handed out: only deliveries are charged."""
        if self.rate is not None:
            self._milli_tokens = min(self.rate * 1000, self._milli_tokens + count * 1000)
