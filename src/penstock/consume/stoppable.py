"""Calls of a consumer that are retried after transient errors, and ended when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from penstock.consume.pace import Pace
from penstock.errors import Busy, PenstockError, StoreError

__all__ = ["Stoppable"]

T = TypeVar("T")

#: The first and the longest pause after a retryable error; the pause doubles each time.
_BACK_OFF_MS: Final = 100
_MAX_BACK_OFF_MS: Final = 10_000
#: Failures in a row after which an error of the store is raised. An unreachable server is
#: retried without limit; a store whose disk failed stays failed until it is opened again.
_MAX_STORE_FAILURES: Final = 12

_log = logging.getLogger("penstock.consume")


class Stoppable:
    """Runs the calls of one consumer until ``stop``."""

    def __init__(self, name: str, pace: Pace) -> None:
        self._name = name
        self._pace = pace
        self._stops: set[Callable[[], None]] = set()
        self._cancelling: set[asyncio.Task[None]] = set()
        self.is_stopping = False

    def stop(self) -> None:
        """End pauses, and calls after a grace period."""
        self.is_stopping = True
        for stop in tuple(self._stops):
            stop()

    async def patiently(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """The result of the call, with retries; None if stopped."""
        failures = 0
        while not self.is_stopping:
            try:
                return await self._unless_stopped(call(), grace_ms=self._pace.claim_grace_ms)
            except PenstockError as error:
                failures += 1
                if not self.may_retry(error, failures):
                    raise
                await self.back_off(error, failures)
        return None

    @staticmethod
    def may_retry(error: PenstockError, failures: int) -> bool:
        """Whether to call again after so many failures in a row."""
        lasts = isinstance(error, StoreError) and failures >= _MAX_STORE_FAILURES
        return error.retryable and not lasts

    async def back_off(self, error: PenstockError, failures: int) -> None:
        """Pause before the next try."""
        wait_ms = _BACK_OFF_MS << min(failures - 1, 16)
        if isinstance(error, Busy):
            wait_ms = max(wait_ms, error.retry_after_ms)
        wait_ms = min(wait_ms, _MAX_BACK_OFF_MS)
        _log.warning("'%s': next try in %d ms: %s", self._name, wait_ms, error)
        await self.sleep(wait_ms)

    async def sleep(self, ms: int) -> None:
        """Return after that time, or when stopped."""
        await self._unless_stopped(self._pace.sleep(ms))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T], *, grace_ms: int = 0) -> T | None:
        """The result of the work, or None if ``stop`` cancelled it after the grace period."""
        if self.is_stopping:
            work.close()
            return None
        task = asyncio.create_task(work)

        def cut_short() -> None:
            if not grace_ms:
                task.cancel()
                return
            later = asyncio.create_task(self._cancel_after(task, grace_ms))
            self._cancelling.add(later)
            later.add_done_callback(self._cancelling.discard)
            task.add_done_callback(lambda _: later.cancel())

        self._stops.add(cut_short)
        try:
            await asyncio.wait((task,))
        finally:
            self._stops.discard(cut_short)
            task.cancel()
        return None if task.cancelled() else task.result()

    async def _cancel_after(self, task: asyncio.Task[T], ms: int) -> None:
        await self._pace.sleep(ms)
        task.cancel()
