"""Prefetch: claims ahead of the callers of ``take``, up to ``max_in_flight``.

Claims are as large as the free capacity. ``max_in_flight`` bounds the unsettled deliveries,
buffered and handed out together. There are two kinds of calls:

- A call that settles claims the next deliveries, too (``settle_and_claim``), if the buffer is
  empty. It never waits for messages, so it does not delay its outcomes.
- The main task claims and waits for messages, if a caller waits and the buffer is empty.
  Settlements that come up meanwhile have calls of their own.

Both also claim if half of the capacity is free and the last claim got all it asked for: there is
probably more. A consumer of several queues settles each by itself, so the main task makes all its
claims, whenever half of the capacity is free.

It ends in this order: no more claims; buffered deliveries are released; holders settle their
deliveries, which are still extended meanwhile; the consumer leaves an ordered queue.

Retryable errors are retried. Any other error is raised by the next ``take``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from msgspec import Struct

from penstock.api import QueueApi
from penstock.consume.claim_buffer import ClaimBuffer
from penstock.consume.deferred_settlements import DeferredSettlements
from penstock.consume.hold import Hold
from penstock.consume.holdings import Holdings
from penstock.consume.membership import Membership
from penstock.consume.pace import Pace
from penstock.consume.settlement_batcher import REFUSALS, Answer, SettlementBatcher
from penstock.consume.stoppable import Stoppable
from penstock.errors import Busy
from penstock.model.delivery import ClaimOrder, Delivery, Outcome, Settlement
from penstock.model.limits import MAX_CLAIM
from penstock.model.queue import Ordering
from penstock.tracing import no_settle_span

__all__ = ["Plan", "Prefetch"]

#: How long one claim waits for messages. Below the maximum (30 s), so that a dead connection
#: is noticed earlier.
_WAIT_MS: Final = 20_000
#: An empty reply that comes sooner than this did not wait; pause this long before retrying.
_IDLE_MS: Final = 50

#: The loop itself keeps weak references only.
_running: set[asyncio.Task[None]] = set()


class Plan(Struct, frozen=True, kw_only=True):
    """The queues, the consumer's name, and how much to claim."""

    queues: tuple[str, ...]
    order: ClaimOrder
    where: str | None
    consumer: str
    max_in_flight: int
    lease_ms: int | None

    def __str__(self) -> str:
        return ", ".join(self.queues)


class Prefetch:
    """The background work of one ``consume``."""

    def __init__(self, verbs: QueueApi, plan: Plan, pace: Pace, stop: asyncio.Event | None) -> None:
        self._verbs = verbs
        self._plan = plan
        self._pace = pace
        self._stop_asked = stop
        self._context = copy_context()
        self._calls = Stoppable(str(plan), pace)
        self.holdings: Final = Holdings(verbs, pace, self._look_again)
        self._buffer = ClaimBuffer()
        self._batchers: dict[str, SettlementBatcher] = {}
        self.deferred: Final = DeferredSettlements(
            self._batcher, self.holdings, self._calls, self.fail
        )
        self._unbegun: list[Hold] = []
        self._wake = asyncio.Event()
        #: Whether a claim is under way: one of the main task, or one that settles, too.
        self._is_claiming = False
        #: Whether the last claim got less than it asked for.
        self._is_drained = False
        self._error: Exception | None = None
        self._main: asyncio.Task[None] | None = None
        self._upkeep: set[asyncio.Task[None]] = set()

    async def take(self, most: int = 1) -> list[Hold]:
        """The next claims, or none at the end. Raises errors that cannot be retried."""
        self._start()
        while not (holds := self._buffer.take(most)):
            self._look_again()
            if not await self._buffer.wait():
                if self._error is not None:
                    raise self._error
                break
        return holds

    def settle(
        self, queue: str, settlements: Sequence[Settlement]
    ) -> asyncio.Future[Sequence[Answer]]:
        """Settle claims of one queue, in a call that may be shared."""
        return self._batcher(queue).add(settlements)

    def _batcher(self, queue: str) -> SettlementBatcher:
        batcher = self._batchers.get(queue)
        if batcher is None:
            batcher = SettlementBatcher(
                partial(self._settle_shared, queue),
                # The program works on the other half while the store works on this one.
                max(1, self._plan.max_in_flight // 2),
                self._look_again,
                self._context,
            )
            self._batchers[queue] = batcher
        return batcher

    def fail(self, error: Exception) -> None:
        """Stop, and raise the error from the next ``take``."""
        self._error = error
        self.stop()

    def stop(self) -> None:
        """Stop claiming; buffered claims are released, taken ones stay held."""
        if self._calls.is_stopping:
            return
        self._unbegun += self._buffer.clear()
        if self._main is None:
            self._buffer.end()
        self._calls.stop()
        self._look_again()

    async def close(self) -> None:
        """Stop, without waiting for claims that are still held."""
        self.stop()
        self.holdings.give_up()
        if self._main is not None:
            await asyncio.wait((self._main,))

    # -- main task ---------------------------------------------------------------------

    def _start(self) -> None:
        if self._main is None and not self._calls.is_stopping:
            self._main = asyncio.create_task(self._run(), name=f"consume {self._plan}")
            _running.add(self._main)
            self._main.add_done_callback(_running.discard)

    async def _run(self) -> None:
        memberships: list[Membership] = []
        try:
            if self._stop_asked is not None:
                self._keep_up(partial(self._heed, self._stop_asked))
            self._keep_up(self.holdings.keep)
            for queue in self._plan.queues:
                await self._enter(queue, memberships)
            await self._claim_until_stopped()
        except asyncio.CancelledError:
            # The loop is ending, and the holders were cancelled too.
            self.holdings.give_up()
            raise
        except Exception as error:  # noqa: BLE001  (the next take raises it)
            self._error = error
        finally:
            self._calls.stop()
            await self._wind_up(memberships)

    async def _enter(self, queue: str, memberships: list[Membership]) -> None:
        """Find the queue, and join it if it is ordered."""
        info = await self._calls.patiently(lambda: self._verbs.queue(queue))
        if info is None or info.policy.ordering is not Ordering.PARTITION:
            return
        consumer = self._plan.consumer
        membership = Membership(self._verbs, queue, consumer, self.holdings, self._pace)
        await self._calls.patiently(membership.join)
        memberships.append(membership)
        self._keep_up(membership.beat)

    async def _claim_until_stopped(self) -> None:
        while not self._calls.is_stopping:
            limit = self._limit_of_claim()
            if not limit:
                self._wake.clear()
                await self._wake.wait()
                continue
            begun = self._pace.now()
            self._is_claiming = True
            try:
                deliveries = await self._calls.patiently(partial(self._claim, limit))
            finally:
                self._is_claiming = False
            if deliveries is None:
                return
            self._claimed(deliveries, limit)
            if not deliveries and self._pace.now() - begun < _IDLE_MS:
                await self._calls.sleep(_IDLE_MS)

    async def _wind_up(self, memberships: Sequence[Membership]) -> None:
        try:
            # What a call under way claims is released, too.
            await self._flushed()
            self._unbegun += self._buffer.clear()
            await self.holdings.release(self._unbegun)
            self._buffer.end()
            await self.holdings.emptied()
            await self._flushed()
            for membership in memberships:
                await membership.leave()
        finally:
            self._buffer.end()
            for task in self._upkeep:
                task.cancel()

    async def _flushed(self) -> None:
        await self.deferred.finished()
        for batcher in tuple(self._batchers.values()):
            await batcher.flushed()

    # -- claiming ----------------------------------------------------------------------

    @property
    def _claims_when_settling(self) -> bool:
        return len(self._plan.queues) == 1

    def _limit_of_claim(self) -> int:
        """How many deliveries the main task claims now."""
        if self._is_claiming:
            return 0
        if self._claims_when_settling and not all(b.is_idle for b in self._batchers.values()):
            return 0  # The call that settles claims, too.
        return self._room(0, is_wanted=self._buffer.is_awaited)

    def _limit_when_settling(self, count: int) -> int:
        """How many deliveries a call claims that settles ``count``."""
        is_free = self._main is not None and not self._is_claiming and not self._calls.is_stopping
        if not is_free or not self._claims_when_settling:
            return 0
        return self._room(count, is_wanted=not self._buffer)

    def _room(self, settling: int, *, is_wanted: bool) -> int:
        """The free capacity, if so many claims are settled; 0 if it is not worth a claim."""
        most = self._plan.max_in_flight
        remaining = most - len(self.holdings) + settling
        if remaining <= 0:
            return 0
        is_ahead = 2 * remaining >= most and not self._is_drained
        return min(remaining, MAX_CLAIM) if is_wanted or is_ahead else 0

    def _claim(self, limit: int) -> Coroutine[Any, Any, list[Delivery]]:
        plan = self._plan
        return self._verbs.claim(
            plan.queues[0] if len(plan.queues) == 1 else plan.queues,
            limit=limit,
            consumer=plan.consumer,
            lease_ms=plan.lease_ms,
            wait_ms=_WAIT_MS,
            order=plan.order,
            where=plan.where,
        )

    def _claimed(self, deliveries: Sequence[Delivery], limit: int) -> None:
        self._is_drained = self._claims_when_settling and len(deliveries) < limit
        if deliveries:
            holds = self.holdings.take(deliveries)
            if self._calls.is_stopping:
                self._unbegun += holds
            else:
                self._buffer.add(holds)

    # -- settling ----------------------------------------------------------------------

    async def _settle_shared(
        self, queue: str, settlements: Sequence[Settlement]
    ) -> Sequence[Outcome]:
        """Settle, and claim the next deliveries in the same call if there is room for them."""
        with no_settle_span():
            limit = self._limit_when_settling(len(settlements))
            try:
                if limit:
                    return await self._settle_and_claim(queue, settlements, limit)
            except (*REFUSALS, Busy):
                # The claim may be to blame: the main task gets its error.
                pass
            reply = await self._verbs.settle(queue, settlements)
            self.holdings.forget(settlements)
            return reply.outcomes

    async def _settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], limit: int
    ) -> Sequence[Outcome]:
        plan = self._plan
        self._is_claiming = True
        try:
            reply = await self._verbs.settle_and_claim(
                queue,
                settlements,
                limit=limit,
                consumer=plan.consumer,
                lease_ms=plan.lease_ms,
                where=plan.where,
            )
        finally:
            self._is_claiming = False
        self.holdings.forget(settlements)
        self._claimed(reply.deliveries, limit)
        return reply.outcomes

    # -- background tasks --------------------------------------------------------------

    def _look_again(self) -> None:
        self._wake.set()

    def _keep_up(self, duty: Callable[[], Awaitable[None]]) -> None:
        """Run this beside the main task, until that ends."""
        task = asyncio.create_task(self._guarded(duty))
        self._upkeep.add(task)
        task.add_done_callback(self._upkeep.discard)

    async def _guarded(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            await duty()
        except Exception as error:  # noqa: BLE001  (the next take raises it)
            self.fail(error)

    async def _heed(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.stop()
