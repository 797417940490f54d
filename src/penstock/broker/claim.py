"""The broker's part of claim: bounds, the throughput limit, and waiting for deliveries.

The limit is a token bucket that is charged only for deliveries handed out: polling an empty
queue costs nothing. It reduces the number of deliveries and never raises; a waiting claim
continues as soon as there is a token (C5). The broker applies it only for engines that do
not, which are the single-process ones.

A caller may be cancelled in the middle of a claim and would never learn of its leases. Engines
release what such a claim granted; the broker does so for a claim of several queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.api import ANONYMOUS
from penstock.broker.claim_queues import FairTurns, claim_round
from penstock.broker.scope import BrokerOptions, Scope, to_where
from penstock.broker.wait_lists import QueueWaitList
from penstock.broker.waiting import Waiting, check_wait
from penstock.errors import PenstockError
from penstock.filters import Filter
from penstock.model.bucket import Bucket
from penstock.model.claim_queues import check_claim_order, check_claim_queues
from penstock.model.delivery import ClaimOrder, Delivery, Ownership, Release
from penstock.model.duration import Duration, to_ms
from penstock.model.limits import MAX_CLAIM, MAX_LEASE_MS, check_name, check_queue_name, check_whole
from penstock.model.queue import Ordering
from penstock.storage.contract import Engine
from penstock.tracing import traced_claim

__all__ = ["Claiming", "Throttle", "Wanted", "check_claim", "check_lease", "check_wait"]

#: How long a queue's limit is cached. Another process may change it.
_REMEMBER_MS: Final = 1_000


class Wanted(NamedTuple):
    """What a claim that waits asks of each of its queues."""

    limit: int
    consumer: str
    lease_ms: int | None
    where: Filter | None = None


class Claiming(Scope):
    """The verbs that take deliveries, and the heartbeats of ordered queues."""

    _waiting: Waiting

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        super().__init__(engine, options, tenant)
        self._throttles: dict[str, Throttle] = {}
        self._fair_turns = FairTurns()

    @traced_claim
    async def claim(
        self,
        queue: str | Sequence[str],
        *,
        limit: int = 1,
        consumer: str = ANONYMOUS,
        lease_ms: Duration | None = None,
        wait_ms: Duration = 0,
        order: ClaimOrder = "given",
        where: str | None = None,
    ) -> list[Delivery]:
        """Lease up to ``limit`` deliveries, waiting up to ``wait_ms`` for the first.

        Of several queues, ``given`` uses a queue only if those before it have too few deliveries;
        ``fair`` gives every queue its turn. With ``where`` only deliveries that match this filter
        are leased, of the first 1,000 that wait; the others stay as they are.
        """
        chosen = None if where is None else to_where(where)
        if order != "given":
            check_claim_order(order)
        if lease_ms is not None:
            lease_ms = to_ms(lease_ms)
        if isinstance(queue, list | tuple):
            names = check_claim_queues(queue)
            check_name(consumer, "consumer")
            check_claim(limit, lease_ms)
            wait_ms = to_ms(wait_ms)
            check_wait(wait_ms)
            wanted = Wanted(limit, consumer, lease_ms, chosen)
            return await self._claim_queues(names, order, wanted, wait_ms)
        name = check_queue_name(queue)
        check_name(consumer, "consumer")
        check_claim(limit, lease_ms)
        if type(wait_ms) is not int or wait_ms:
            wait_ms = to_ms(wait_ms)
            check_wait(wait_ms)
            wanted = Wanted(limit, consumer, lease_ms, chosen)
            return await self._claim_waiting(name, wanted, wait_ms)
        return await self._claim_now(name, limit, consumer, lease_ms, chosen)

    async def most_apart(self, queue: str, limit: int) -> int:
        """How many deliveries one claim may take for ``limit`` callers that work independently.

        Consecutive deliveries of a partition, which ``partition_batch`` allows, are for one caller.
        """
        check_claim(limit, None)
        return 1 if (await self._throttle(check_queue_name(queue))).in_runs else limit

    async def _claim_now(
        self,
        queue: str,
        limit: int,
        consumer: str,
        lease_ms: int | None,
        where: Filter | None = None,
    ) -> list[Delivery]:
        """Claim without waiting, within the throughput limit."""
        throttle = await self._throttle(queue)
        allowed = limit if throttle.is_unlimited else throttle.take(limit, self._clock.now())
        if not allowed:
            # Still raise if the queue or the store is gone.
            await self._engine.get_queue(self.tenant, queue)
            return []
        given = 0
        try:
            deliveries = await self._claim(queue, consumer, allowed, lease_ms, where)
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

    # -- several queues ----------------------------------------------------------------

    async def _claim_queues(
        self,
        names: tuple[str, ...],
        order: ClaimOrder,
        wanted: Wanted,
        wait_ms: int,
    ) -> list[Delivery]:
        for name in names:
            await self._engine.get_queue(self.tenant, name)  # Raises if there is none.
        queues = self._fair_turns.rotated(names) if order == "fair" else names
        granted: list[Delivery] = []

        async def claim_one(queue: str, most: int) -> list[Delivery]:
            found = await self._claim_now(
                queue, most, wanted.consumer, wanted.lease_ms, wanted.where
            )
            granted.extend(found)
            return found

        try:
            found = await claim_round(queues, wanted.limit, order, claim_one)
        except asyncio.CancelledError:
            self._waiting.finish(self._release(granted))
            raise
        if found or not wait_ms:
            return found
        return await self._wait_for_any(queues, wanted, wait_ms)

    async def _wait_for_any(
        self, queues: Sequence[str], wanted: Wanted, wait_ms: int
    ) -> list[Delivery]:
        """Wait in the lines of all queues until one grants something; they claim one at a time."""
        deadline = self._clock.now() + wait_ms
        claiming = asyncio.Lock()
        granted: list[Delivery] = []
        is_over = False

        async def wait_in_line(queue: str) -> None:
            with self._waiting.for_deliveries(self.tenant, queue, wanted.where) as place:
                line = place.line

                async def look() -> bool:
                    async with claiming:
                        if not granted and not is_over:
                            granted.extend(await self._look(line, queue, wanted))
                        return bool(granted)

                await place.first(look, deadline)
                if len(granted) == wanted.limit and granted[0].queue == queue and not line.quiet:
                    line.wake(2)  # As in ``_claim_waiting``.

        waits = [asyncio.ensure_future(wait_in_line(queue)) for queue in queues]
        try:
            ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            is_over = True
            async with claiming:
                # A claim in progress has ended: cancelled, it would give back what it is granted.
                await _cancelled(waits)
        except asyncio.CancelledError:
            self._waiting.finish(self._abandon(waits, granted))
            raise
        if not granted:
            for wait in ended:
                wait.result()  # Raises the error of a queue.
        return granted

    async def _abandon(
        self, waits: Sequence[asyncio.Future[None]], granted: list[Delivery]
    ) -> None:
        """End the waits of a cancelled claim, and release what they were granted."""
        await _cancelled(waits)
        await self._release(granted)

    # -- waiting -----------------------------------------------------------------------

    async def _claim_waiting(self, queue: str, wanted: Wanted, wait_ms: int) -> list[Delivery]:
        with self._waiting.for_deliveries(self.tenant, queue, wanted.where) as place:
            line = place.line
            deliveries = await place.first(
                lambda: self._look(line, queue, wanted), self._clock.now() + wait_ms
            )
            if len(deliveries) == wanted.limit and not line.quiet:
                # There may be many more: wake two waiters even if one is already polling, so that a
                # hundred waiters are awake after a few commits and not after a hundred.
                line.wake(2)
            return deliveries

    async def _look(self, line: QueueWaitList, queue: str, wanted: Wanted) -> list[Delivery]:
        """Claim once for a waiter; without a token, set the line's alarm for the next one."""
        throttle = await self._throttle(queue)
        line.order(throttle.ordered)
        line.hold(throttle)
        now = self._clock.now()
        allowed = throttle.take(wanted.limit, now)
        if not allowed:
            line.rest_until(throttle.next_at(now) or now)
            return []
        given = 0
        try:
            deliveries = await self._claim(
                queue, wanted.consumer, allowed, wanted.lease_ms, wanted.where
            )
            given = len(deliveries)
        finally:
            if not throttle.is_unlimited:
                throttle.charge(allowed, given, self._clock.now())
        return deliveries

    async def _claim(
        self, queue: str, consumer: str, limit: int, lease_ms: int | None, where: Filter | None
    ) -> list[Delivery]:
        """Claim within the tenant's share of the store."""
        shares = self._engine.shares
        if not shares.enter(self.tenant, limit):
            await shares.wait(self.tenant, limit)
        try:
            return await self._engine.claim(self.tenant, queue, consumer, limit, lease_ms, where)
        finally:
            shares.leave(self.tenant, limit)

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries that a cancelled caller will never learn of."""
        by_queue: dict[str, list[Release]] = {}
        for delivery in deliveries:
            by_queue.setdefault(delivery.queue, []).append(Release(delivery.receipt))
        for queue, releases in by_queue.items():
            # The queue or the store may be gone, or the store cannot commit. Nothing is lost: the
            # leases lapse.
            with suppress(PenstockError):
                await self._engine.settle(self.tenant, queue, releases)

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
            throttle.in_runs = throttle.ordered and info.policy.partition_batch > 1
        return throttle


async def _cancelled(waits: Sequence[asyncio.Future[None]]) -> None:
    """Cancel the waits and wait until they have ended."""
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


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

    It also caches whether the queue is ordered, and whether a claim may take several deliveries of
    a partition: these come from the same policy.
    """

    __slots__ = ("_bucket", "_reserved", "in_runs", "ordered", "remembered_at")

    def __init__(self, rate: int | None, now: int) -> None:
        self.ordered = False
        self.in_runs = False
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
