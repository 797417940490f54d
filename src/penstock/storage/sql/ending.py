"""Ending: reliable cancellation of background tasks.

A cancellation can get lost: up to Python 3.11 ``asyncio.wait_for``, which drivers use to open
connections, swallows it if the awaited operation completes at that very moment. So a task is
cancelled repeatedly until it has ended.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["end"]

#: Seconds before a task that has not ended is cancelled again.
_AGAIN_S: Final = 2.0


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel the tasks, and wait until they have ended. None is ignored."""
    pending = {task for task in tasks if task is not None}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
