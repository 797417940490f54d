"""A duty that a door repeats, from its start to its stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from penstock.errors import PenstockError

__all__ = ["Background"]

#: The pause after a failure.
_AFTER_ERROR_S: Final = 5.0

log = logging.getLogger("penstock.server")


class Background:
    """Calls ``work``, which returns the seconds to pause, again and again; errors are logged."""

    def __init__(self, name: str, work: Callable[[], Awaitable[float]]) -> None:
        self._name = name
        self._work = work
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def wake(self) -> None:
        """End the pause."""
        self._woken.set()

    async def stop(self) -> None:
        """Cancel the work in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            pause_s = _AFTER_ERROR_S
            try:
                pause_s = await self._work()
            except PenstockError as error:
                log.warning("%s failed: %s", self._name, error)
            except Exception:
                log.exception("%s failed.", self._name)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
