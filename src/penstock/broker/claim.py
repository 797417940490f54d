"""The broker's part of claim: bounds, the throughput limit, and waiting for deliveries.

The limit is a token bucket that is charged only for deliveries handed out: polling an empty
queue costs nothing. It reduces the number of deliveries and never raises; a waiting claim
continues as soon as there is a token (C5). The broker applies it only for engines that do
not, which are the single-process ones.

A caller may be cancelled in the middle of a waiting claim and would never learn of its
leases. So that claim is shielded, and its deliveries are then released, uncounted. A claim
that does not wait is not shielded: it takes one commit, and the shield costs more than the
rest of it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.api import ANONYMOUS
from penstock.broker.scope import BrokerOptions, Scope
from penstock.broker.wait_lists import QueueWaitList
from penstock.broker.waiting import Waiting, check_wait
from penstock.errors import PenstockError
from penstock.model.bucket import Bucket
from penstock.model.delivery import Delivery, Ownership, Release
from penstock.model.limits import MAX_CLAIM, MAX_LEASE_MS, check_name, check_queue_name, check_whole
from penstock.model.queue import Ordering
from penstock.storage.contract import Engine
from penstock.tracing import traced_claim

__all__ = ["Claiming", "Throttle", "check_claim", "check_lease", "check_wait"]

#: How long a queue's limit is cached. Another process may change it.
_REMEMBER_MS: Final = 1_000


class Claiming(Scope):
    """The verbs that take deliveries, and the heartbeats of ordered queues."""

    _waiting: Waiting

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        super().__init__(engine, options, tenant)
        self._throttles: dict[str, Throttle] = {}

    @traced_claim
    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        consumer: str = ANONYMOUS,
        lease_ms: int | None = None,
        wait_ms: int = 0,
    ) -> list[Delivery]:
        """Lease up to ``limit`` deliveries, waiting up to ``wait_ms`` for the first."""
        check_queue_name(queue)
        check_name(consumer, "consumer")
        check_claim(limit, lease_ms)
        if type(wait_ms) is not int or wait_ms:
            check_wait(wait_ms)
            return await self._claim_waiting(queue, limit, consumer, lease_ms, wait_ms)
        throttle = await self._throttle(queue)
        allowed = limit if throttle.is_unlimited else throttle.take(limit, self._clock.now())
        if not allowed:
            # Still raise if the queue or the store is gone.
            await self._engine.get_queue(self.tenant, queue)
            return []
        given = 0
        try:
            deliveries = await self._claim(queue, consumer, allowed, lease_ms)
            given = len(deliveries)
        finally:
            if not throttle.is_unlimited:
                throttle.charge(allowed, given, self._clock.now())
        return deliveries

    async def join(self, queue: str, consumer: str) -> Ownership:
        """Join an ordered queue, or heartbeat."""
        check_queue_name(queue)
        return await self._engine.join(self.tenant, queue, check_name(consumer, "consumer"))

    async def leave(self, queue: str, consumer: str) -> None:
        """Release the consumer's partitions immediately."""
        check_queue_name(queue)
        await self._engine.leave(self.tenant, queue, check_name(consumer, "consumer"))

    # -- waiting -----------------------------------------------------------------------

    async def _claim_waiting(
        self, queue: str, limit: int, consumer: str, lease_ms: int | None, wait_ms: int
    ) -> list[Delivery]:
        with self._waiting.for_deliveries(self.tenant, queue) as place:
            line = place.line
            deliveries = await place.first(
                lambda: self._look(line, queue, limit, consumer, lease_ms),
                self._clock.now() + wait_ms,
            )
            if len(deliveries) == limit and not line.quiet:
                # There may be many more: wake two waiters even if one is already polling, so that a
                # hundred waiters are awake after a few commits and not after a hundred.
                line.wake(2)
            return deliveries

    async def _look(
        self, line: QueueWaitList, queue: str, limit: int, consumer: str, lease_ms: int | None
    ) -> list[Delivery]:
        """Claim once for a waiter; without a token, set the line's alarm for the next one."""
        throttle = await self._throttle(queue)
        line.order(throttle.ordered)
        line.hold(throttle)
        now = self._clock.now()
        allowed = throttle.take(limit, now)
        if not allowed:
            line.rest_until(throttle.next_at(now) or now)
            return []
        claiming = asyncio.ensure_future(self._claim(queue, consumer, allowed, lease_ms))
        given = 0
        try:
            deliveries = await asyncio.shield(claiming)
            given = len(deliveries)
        except asyncio.CancelledError:
            self._waiting.finish(self._hand_back(claiming, queue))
            raise
        finally:
            if not throttle.is_unlimited:
                throttle.charge(allowed, given, self._clock.now())
        return deliveries

    async def _claim(
        self, queue: str, consumer: str, limit: int, lease_ms: int | None
    ) -> list[Delivery]:
        """Claim within the tenant's share of the store."""
        shares = self._engine.shares
        if not shares.enter(self.tenant, limit):
            await shares.wait(self.tenant, limit)
        try:
            return await self._engine.claim(self.tenant, queue, consumer, limit, lease_ms)
        finally:
            shares.leave(self.tenant, limit)

    async def _hand_back(self, claiming: asyncio.Future[list[Delivery]], queue: str) -> None:
        """Release the deliveries of a cancelled claim."""
        try:
            deliveries = await claiming
            if deliveries:
                releases = [Release(delivery.receipt) for delivery in deliveries]
                await self._engine.settle(self.tenant, queue, releases)
        except PenstockError:
            # The queue or the store is gone, or the store cannot commit. Nothing is lost: the
            # leases lapse.
            return

    async def _throttle(self, queue: str) -> Throttle:
        now = self._clock.now()
        throttle = self._throttles.get(queue)
        if throttle is None or not throttle.is_fresh(now):
            info = await self._engine.get_queue(self.tenant, queue)
            limit = info.policy.throughput_limit
            if self._engine.capabilities.limits_throughput:
                limit = None
            # Another claim may have added it meanwhile.
            throttle = self._throttles.setdefault(queue, Throttle(limit, now))
            throttle.remember(limit, now)
            throttle.ordered = info.policy.ordering is Ordering.PARTITION
        return throttle


def check_claim(limit: object, lease_ms: object) -> None:
    """Refuse a claim whose numbers are out of bounds."""
    check_whole("limit", limit, 1, MAX_CLAIM)
    if lease_ms is not None:
        check_lease(lease_ms)


def check_lease(lease_ms: object) -> None:
    """Refuse a lease that is not a positive number of milliseconds; policies clamp it."""
    check_whole("lease_ms", lease_ms, 1, MAX_LEASE_MS)


class Throttle:
    """The throughput limit of one queue.

    It also caches whether the queue is ordered, which comes from the same policy.
    """

    __slots__ = ("_bucket", "_reserved", "ordered", "remembered_at")

    def __init__(self, rate: int | None, now: int) -> None:
        self.ordered = False
        self.remembered_at = now
        self._bucket = None if rate is None else Bucket.full(rate, now)
        #: Tokens of claims that are under way.
        self._reserved = 0

    def doubt(self) -> None:
        """Reload the rate before the next claim: it may have changed."""
        self.remembered_at = -_REMEMBER_MS

    def is_fresh(self, now: int) -> bool:
        """Whether the cached rate may still be used."""
        return 0 <= now - self.remembered_at < _REMEMBER_MS

    def remember(self, rate: int | None, now: int) -> None:
        """Set a rate that was just read; an unchanged rate keeps its tokens."""
        if rate is None:
            self._bucket, self._reserved = None, 0
        elif self._bucket is None or self._bucket.rate != rate:
            self._bucket = Bucket.full(rate, now)
        self.remembered_at = now

    @property
    def is_unlimited(self) -> bool:
        """Whether the queue has no limit, so that a claim need not read the clock."""
        return self._bucket is None

    def take(self, limit: int, now: int) -> int:
        """Reserve tokens for up to ``limit`` deliveries; returns how many. ``charge`` must follow.

        They stay in the bucket until the deliveries are granted. If they left it now, the bucket
        could refill during the claim, and allow more than the limit just after the grant.
        """
        if self._bucket is None:
            return limit
        self._bucket = self._bucket.refilled(now)
        taken = max(0, min(limit, self._bucket.tokens - self._reserved))
        self._reserved += taken
        return taken

    def charge(self, taken: int, given: int, now: int) -> None:
        """End a claim that reserved ``taken`` tokens and was granted ``given`` deliveries."""
        if self._bucket is None:
            return
        self._reserved = max(0, self._reserved - taken)
        self._bucket = self._bucket.refilled(now).charged(given)

    def next_at(self, now: int) -> int | None:
        """When the next token arrives; None if there is one now, or no limit."""
        if self._bucket is None:
            return None
        bucket = self._bucket.refilled(now).charged(self._reserved)
        return None if bucket.tokens > 0 else max(now, bucket.next_at())
