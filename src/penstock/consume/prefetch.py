"""Prefetch: claims ahead of the callers of ``take``, up to ``max_in_flight``.

One task claims in batches as large as the free capacity. It refills when half of the capacity
is free, or when a caller waits and the buffer is empty. ``max_in_flight`` bounds the unsettled
deliveries, buffered and handed out together.

It ends in this order: no more claims; buffered deliveries are released; holders settle their
deliveries, which are still extended meanwhile; the consumer leaves an ordered queue.

Retryable errors are retried. Any other error is raised by the next ``take``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct

from penstock.api import QueueApi
from penstock.consume.hold import Fate, Hold
from penstock.consume.holdings import Holdings
from penstock.consume.membership import Membership
from penstock.consume.pace import Pace
from penstock.errors import Busy, PenstockError, StoreError
from penstock.model.delivery import ClaimOrder, Delivery
from penstock.model.limits import MAX_CLAIM
from penstock.model.queue import Ordering

__all__ = ["Plan", "Prefetch"]

T = TypeVar("T")

#: How long one claim waits for messages. Below the maximum (30 s), so that a dead connection
#: is noticed earlier.
_WAIT_MS: Final = 20_000
#: An empty reply that comes sooner than this did not wait; pause this long before retrying.
_IDLE_MS: Final = 50
#: The first and the longest pause after a retryable error; the pause doubles each time.
_BACK_OFF_MS: Final = 100
_MAX_BACK_OFF_MS: Final = 10_000
#: Failures in a row after which an error of the store is raised. An unreachable server is
#: retried without limit; a store whose disk failed stays failed until it is opened again.
_MAX_STORE_FAILURES: Final = 12

_log = logging.getLogger("penstock.consume")

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
        self._holdings = Holdings(verbs, pace, self._look_again)
        #: Claims that were not taken yet; None marks the end.
        self._buffer: asyncio.Queue[Hold | None] = asyncio.Queue()
        self._unbegun: list[Hold] = []
        self._takers = 0
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._error: Exception | None = None
        self._main: asyncio.Task[None] | None = None
        self._upkeep: set[asyncio.Task[None]] = set()
        #: Cancels the call that the main task waits for.
        self._cut_short: Callable[[], None] | None = None

    async def take(self) -> Hold | None:
        """The next claim, or None at the end. Raises errors that cannot be retried."""
        self._start()
        while True:
            hold = await self._next()
            if hold is None:
                # Put it back: several callers may take concurrently.
                self._buffer.put_nowait(None)
                if self._error is not None:
                    raise self._error
                return None
            if hold.fate is Fate.HELD:
                return hold

    def stop(self) -> None:
        """Stop claiming; buffered claims are released, taken ones stay held."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._empty_buffer()
        if self._main is None:
            self._buffer.put_nowait(None)
        self._look_again()
        if self._cut_short is not None:
            self._cut_short()

    async def close(self) -> None:
        """Stop, without waiting for claims that are still held."""
        self.stop()
        self._holdings.give_up()
        if self._main is not None:
            await asyncio.wait((self._main,))

    async def _next(self) -> Hold | None:
        if not self._buffer.empty():
            return self._buffer.get_nowait()
        self._takers += 1
        self._look_again()
        try:
            return await self._buffer.get()
        finally:
            self._takers -= 1

    def _empty_buffer(self) -> None:
        """Move the buffered claims to the list of claims to release."""
        while not self._buffer.empty():
            hold = self._buffer.get_nowait()
            if hold is not None:
                self._unbegun.append(hold)

    # -- main task ---------------------------------------------------------------------

    def _start(self) -> None:
        if self._main is None and not self._is_stopping:
            self._main = asyncio.create_task(self._run(), name=f"consume {self._plan}")
            _running.add(self._main)
            self._main.add_done_callback(_running.discard)

    async def _run(self) -> None:
        memberships: list[Membership] = []
        try:
            if self._stop_asked is not None:
                self._keep_up(partial(self._heed, self._stop_asked))
            self._keep_up(self._holdings.keep)
            for queue in self._plan.queues:
                await self._enter(queue, memberships)
            await self._claim_until_stopped()
        except asyncio.CancelledError:
            # The loop is ending, and the holders were cancelled too.
            self._holdings.give_up()
            raise
        except Exception as error:  # noqa: BLE001  (the next take raises it)
            self._error = error
        finally:
            self._is_stopping = True
            await self._wind_up(memberships)

    async def _enter(self, queue: str, memberships: list[Membership]) -> None:
        """Find the queue, and join it if it is ordered."""
        info = await self._patiently(lambda: self._verbs.queue(queue))
        if info is None or info.policy.ordering is not Ordering.PARTITION:
            return
        consumer = self._plan.consumer
        membership = Membership(self._verbs, queue, consumer, self._holdings, self._pace)
        await self._patiently(membership.join)
        memberships.append(membership)
        self._keep_up(membership.beat)

    async def _claim_until_stopped(self) -> None:
        while not self._is_stopping:
            if not self._wants_more():
                self._wake.clear()
                await self._wake.wait()
                continue
            begun = self._pace.now()
            deliveries = await self._patiently(self._claim)
            if deliveries:
                for hold in self._holdings.take(deliveries):
                    self._buffer.put_nowait(hold)
            elif self._pace.now() - begun < _IDLE_MS:
                await self._unless_stopped(self._pace.sleep(_IDLE_MS))

    async def _wind_up(self, memberships: Sequence[Membership]) -> None:
        try:
            self._empty_buffer()
            await self._holdings.release(self._unbegun)
            self._buffer.put_nowait(None)
            await self._holdings.emptied()
            for membership in memberships:
                await membership.leave()
        finally:
            for task in self._upkeep:
                task.cancel()

    # -- claiming ----------------------------------------------------------------------

    def _wants_more(self) -> bool:
        most = self._plan.max_in_flight
        remaining = most - len(self._holdings)
        is_wanted = self._takers > 0 and self._buffer.empty()
        return remaining > 0 and (is_wanted or 2 * remaining >= most)

    def _claim(self) -> Coroutine[Any, Any, list[Delivery]]:
        plan = self._plan
        return self._verbs.claim(
            plan.queues[0] if len(plan.queues) == 1 else plan.queues,
            limit=min(plan.max_in_flight - len(self._holdings), MAX_CLAIM),
            consumer=plan.consumer,
            lease_ms=plan.lease_ms,
            wait_ms=_WAIT_MS,
            order=plan.order,
            where=plan.where,
        )

    async def _patiently(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """The result of the call, with retries; None if stopped."""
        failures = 0
        while not self._is_stopping:
            try:
                return await self._unless_stopped(call(), grace_ms=self._pace.claim_grace_ms)
            except PenstockError as error:
                failures += 1
                lasts = isinstance(error, StoreError) and failures >= _MAX_STORE_FAILURES
                if lasts or not error.retryable:
                    raise
                await self._back_off(error, failures)
        return None

    async def _back_off(self, error: PenstockError, failures: int) -> None:
        wait_ms = _BACK_OFF_MS << min(failures - 1, 16)
        if isinstance(error, Busy):
            wait_ms = max(wait_ms, error.retry_after_ms)
        wait_ms = min(wait_ms, _MAX_BACK_OFF_MS)
        _log.warning("'%s': next try in %d ms: %s", self._plan, wait_ms, error)
        await self._unless_stopped(self._pace.sleep(wait_ms))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T], *, grace_ms: int = 0) -> T | None:
        """The result of the work, or None if ``stop`` cancelled it after the grace period."""
        if self._is_stopping:
            work.close()
            return None
        task = asyncio.create_task(work)

        def cut_short() -> None:
            if grace_ms:
                self._keep_up(partial(self._cancel_after, task, grace_ms))
            else:
                task.cancel()

        self._cut_short = cut_short
        try:
            await asyncio.wait((task,))
        finally:
            self._cut_short = None
            task.cancel()
        return None if task.cancelled() else task.result()

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
            self._error = error
            self.stop()

    async def _heed(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.stop()

    async def _cancel_after(self, task: asyncio.Task[T], ms: int) -> None:
        await self._pace.sleep(ms)
        task.cancel()
