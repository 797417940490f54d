"""Prefetch: claims ahead of whoever takes, and never holds more than it may.

One task claims while there is room, in batches as large as the room: it refills when half of
it is free, or when somebody waits and there is nothing left. ``max_in_flight`` bounds what is
unsettled, buffered and handed out together.

It ends in this order, and only then lets go: no more claims; what is buffered is released;
what is held is settled by its holders, still extended meanwhile; an ordered queue is left.

An error that may pass is waited out. Any other one is raised to whoever takes next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct

from penstock.consume.hold import Fate, Hold
from penstock.consume.holdings import Holdings
from penstock.consume.membership import Membership
from penstock.consume.pace import Pace
from penstock.errors import Busy, PenstockError, StoreError
from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_CLAIM
from penstock.model.queue import Ordering
from penstock.verbs import Verbs

__all__ = ["Plan", "Prefetch"]

T = TypeVar("T")

#: How long one claim waits for messages. Below the longest wait there is (30 s), so that a
#: connection that died unnoticed is noticed before.
_WAIT_MS: Final = 20_000
#: An empty answer that comes quicker than this has not waited: asking again waits as long.
_IDLE_MS: Final = 50
#: Between two tries after an error that may pass: doubled each time, from and up to these.
_BACK_OFF_MS: Final = 100
_MAX_BACK_OFF_MS: Final = 10_000
#: Tries in a row after which an error of the store is raised. A server that is away is waited
#: for without end; a store whose disk has refused stays so until it is opened again.
_MAX_STORE_FAILURES: Final = 12

_log = logging.getLogger("penstock.consume")

#: The loop itself keeps weak references only.
_running: set[asyncio.Task[None]] = set()


class Plan(Struct, frozen=True, kw_only=True):
    """What is consumed, under which name, and how much at a time."""

    queue: str
    consumer: str
    max_in_flight: int
    lease_ms: int | None


class Prefetch:
    """Everything that goes on behind one ``consume``."""

    def __init__(self, verbs: Verbs, plan: Plan, pace: Pace, stop: asyncio.Event | None) -> None:
        self._verbs = verbs
        self._plan = plan
        self._pace = pace
        self._stop_asked = stop
        self._holdings = Holdings(verbs, plan.queue, pace, self._look_again)
        #: What is claimed and not taken; None says that nothing comes any more.
        self._buffer: asyncio.Queue[Hold | None] = asyncio.Queue()
        self._unbegun: list[Hold] = []
        self._takers = 0
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._error: Exception | None = None
        self._main: asyncio.Task[None] | None = None
        self._upkeep: set[asyncio.Task[None]] = set()
        #: What the main task waits for, and how to cut that short.
        self._cut_short: Callable[[], None] | None = None

    async def take(self) -> Hold | None:
        """The next claim, or None when none comes any more. Raises what cannot pass."""
        self._start()
        while True:
            hold = await self._next()
            if hold is None:
                # For the next who asks: several may take at the same time.
                self._buffer.put_nowait(None)
                if self._error is not None:
                    raise self._error
                return None
            if hold.fate is Fate.HELD:
                return hold

    def stop(self) -> None:
        """Claim no more; what is buffered goes back, what is held stays held."""
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
        """Stop, and wait for nobody who still holds something."""
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
        """Nobody is going to take what is in it: that goes back."""
        while not self._buffer.empty():
            hold = self._buffer.get_nowait()
            if hold is not None:
                self._unbegun.append(hold)

    # -- from beginning to end ---------------------------------------------------------

    def _start(self) -> None:
        if self._main is None and not self._is_stopping:
            self._main = asyncio.create_task(self._run(), name=f"consume {self._plan.queue}")
            _running.add(self._main)
            self._main.add_done_callback(_running.discard)

    async def _run(self) -> None:
        membership: Membership | None = None
        try:
            if self._stop_asked is not None:
                self._keep_up(partial(self._heed, self._stop_asked))
            membership = await self._enter()
            await self._claim_until_stopped()
        except asyncio.CancelledError:
            # The loop ends. Whoever holds something was cancelled too.
            self._holdings.give_up()
            raise
        except Exception as error:  # noqa: BLE001  (whoever takes next is given it)
            self._error = error
        finally:
            self._is_stopping = True
            await self._wind_up(membership)

    async def _enter(self) -> Membership | None:
        """Find the queue, join it if it is ordered, and begin to keep claims alive."""
        plan = self._plan
        info = await self._patiently(lambda: self._verbs.queue(plan.queue))
        if info is None:
            return None
        self._keep_up(self._holdings.keep)
        if info.policy.ordering is not Ordering.PARTITION:
            return None
        membership = Membership(self._verbs, plan.queue, plan.consumer, self._holdings, self._pace)
        await self._patiently(membership.join)
        self._keep_up(membership.beat)
        return membership

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

    async def _wind_up(self, membership: Membership | None) -> None:
        try:
            self._empty_buffer()
            await self._holdings.release(self._unbegun)
            self._buffer.put_nowait(None)
            await self._holdings.emptied()
            if membership is not None:
                await membership.leave()
        finally:
            for task in self._upkeep:
                task.cancel()

    # -- claiming ----------------------------------------------------------------------

    def _wants_more(self) -> bool:
        most = self._plan.max_in_flight
        room = most - len(self._holdings)
        is_wanted = self._takers > 0 and self._buffer.empty()
        return room > 0 and (is_wanted or 2 * room >= most)

    def _claim(self) -> Coroutine[Any, Any, list[Delivery]]:
        plan = self._plan
        return self._verbs.claim(
            plan.queue,
            limit=min(plan.max_in_flight - len(self._holdings), MAX_CLAIM),
            consumer=plan.consumer,
            lease_ms=plan.lease_ms,
            wait_ms=_WAIT_MS,
        )

    async def _patiently(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """What the call gives, once errors that may pass have passed; None if it is stopped."""
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
        _log.warning("%r: next try in %d ms: %s", self._plan.queue, wait_ms, error)
        await self._unless_stopped(self._pace.sleep(wait_ms))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T], *, grace_ms: int = 0) -> T | None:
        """What the work gives, or None if ``stop`` cut it short, after its grace."""
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

    # -- beside it ---------------------------------------------------------------------

    def _look_again(self) -> None:
        self._wake.set()

    def _keep_up(self, duty: Callable[[], Awaitable[None]]) -> None:
        """Do this beside the main task, until that ends."""
        task = asyncio.create_task(self._guarded(duty))
        self._upkeep.add(task)
        task.add_done_callback(self._upkeep.discard)

    async def _guarded(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            await duty()
        except Exception as error:  # noqa: BLE001  (whoever takes next is given it)
            self._error = error
            self.stop()

    async def _heed(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.stop()

    async def _cancel_after(self, task: asyncio.Task[T], ms: int) -> None:
        await self._pace.sleep(ms)
        task.cancel()
