"""Calls in threads that are not left behind when their caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """The result of a call that nothing else may run beside, in a thread.

    A cancellation waits until the call has ended: what the caller does next, such as undoing or
    closing, uses the same connection or store, which allows one thread at a time.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        work.exception()  # Not to be reported: the caller was cancelled.
        raise cancelled
    return work.result()
