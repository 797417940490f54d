"""Long changes: a verb that changes many records runs in slices that exclude other verbs.

A publish of 10,000 messages takes tens of milliseconds, too long to block the event loop. It is
still one commit, and no other call may see half of it (P2, S3). So such a verb runs in steps and
yields to the loop when a slice is used up: requests are read and decoded, replies are sent. Other
verbs and the next commit wait until the last step.

A change that fits in one step costs nothing extra.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from penstock.model.message import NewMessage

__all__ = ["STEP", "LongChanges", "message_steps"]

#: Messages or settlements per step, between two clock checks: under a millisecond, and a single
#: step for most batches.
STEP: Final = 100
#: Headers per step: encoding them takes two milliseconds.
_HEADERS_A_STEP: Final = 2_000
_headers_of: Final = attrgetter("headers")


class LongChanges:
    """Whether a long change is in progress, and its waiters. Used on the event loop only."""

    __slots__ = ("_slice_s", "_waiting", "under_way", "when_over")

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: While this is True, no other verb may begin or resume after an await.
        self.under_way = False
        #: Called when a long change ends; the committer then commits what it had deferred.
        self.when_over: Callable[[], None] = _nothing

    async def over(self) -> None:
        """Wait until no long change is in progress; that holds until the next await."""
        while self.under_way:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def begin(self, steps: Iterator[None]) -> bool:
        """Run the steps of a change that fit into one slice. Returns whether those were all.

        If not, other verbs are excluded from now on, and the caller must call ``finish`` or
        ``finish_later`` next. No other change may be in progress.
        """
        ends: float | None = None
        for _ in steps:
            now = asyncio.get_running_loop().time()
            if ends is None:
                ends = now + self._slice_s
            if now >= ends:
                # Set here, because the next callback that the loop runs may be a verb.
                self.under_way = True
                return False
        return True

    async def finish(self, steps: Iterator[None]) -> None:
        """Run the remaining steps, in slices.

        A change is never left half done: cancellation is raised after the last step.
        """
        cancelled: asyncio.CancelledError | None = None
        is_over = False
        while not is_over:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                cancelled = error
            is_over = self._run_slice(steps)
        if cancelled is not None:
            raise cancelled

    def finish_later(self, steps: Iterator[None]) -> None:
        """Run the remaining steps in callbacks of the loop, which are never cancelled.

        A task that is cancelled before its first step would never end the change.
        """
        asyncio.get_running_loop().call_soon(self._go_on, steps)

    def _go_on(self, steps: Iterator[None]) -> None:
        if not self._run_slice(steps):
            self.finish_later(steps)

    def _run_slice(self, steps: Iterator[None]) -> bool:
        """Run steps for one slice. Returns whether those were the last; then the change ends."""
        time = asyncio.get_running_loop().time
        ends = time() + self._slice_s
        is_over = True  # Also after an error.
        try:
            is_over = all(time() < ends for _ in steps)
        finally:
            if is_over:
                self._end()
        return is_over

    def _end(self) -> None:
        self.under_way = False
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self.when_over()


def _nothing() -> None:
    """Default until the committer sets ``when_over``."""


def message_steps(messages: Sequence[NewMessage], step: int) -> Iterator[Sequence[NewMessage]]:
    """The messages in parts of at most ``step``, or of fewer if they have many headers."""
    for begin in range(0, len(messages), step):
        part = messages[begin : begin + step]
        headers = sum(map(len, map(_headers_of, part)))
        fewer = max(1, len(part) * _HEADERS_A_STEP // max(headers, _HEADERS_A_STEP))
        for inside in range(0, len(part), fewer):
            yield part[inside : inside + fewer]
