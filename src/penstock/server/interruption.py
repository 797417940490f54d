"""Interruptions: what ends a call that waits, before it has a result.

The call's own task is cancelled, as by ``asyncio.timeout``. A task for the work and another one for
each reason to end it would cost a waiting claim 60 µs, and its reply two turns of the event loop.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

__all__ = ["Interrupted", "Interruption", "StopSignal"]


class Interrupted(Exception):
    """The block was cut."""


class Interruption:
    """A block of the current task that ``cut`` ends with ``Interrupted``."""

    __slots__ = ("_cancelling", "_is_cut", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] | None = task
        self._cancelling = task.cancelling()
        self._is_cut = False

    def cut(self, cause: object = None) -> None:  # noqa: ARG002  (a future that it is a callback of)
        """Cancel what the block waits for; after its end this does nothing."""
        if self._task is not None and not self._is_cut:
            self._is_cut = True
            self._task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if task is None or not self._is_cut:
            return
        # A cancellation that also came from elsewhere must not be swallowed.
        is_only_cut = task.uncancel() <= self._cancelling
        if is_only_cut and isinstance(error, asyncio.CancelledError):
            raise Interrupted from None


class StopSignal(asyncio.Event):
    """Set once, when the server stops; cuts the calls that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[Interruption] = set()

    def set(self) -> None:
        """Stop, and cut what waits."""
        super().set()
        for interruption in tuple(self.waiting):
            interruption.cut()
