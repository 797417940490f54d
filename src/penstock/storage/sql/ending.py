"""Ending: what runs in the background ends when it is told to.

A cancellation can get lost on its way: up to Python 3.11 ``asyncio.wait_for``, which drivers open
their connections by, swallows it if what it waits for is done at that very moment. So a task is
cancelled until it has ended.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["end"]

#: Seconds that a task has to take its leave before it is told again.
_AGAIN_S: Final = 2.0


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel the tasks, and wait until they have ended; None is fine."""
    pending = {task for task in tasks if task is not None}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
