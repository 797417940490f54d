"""Long changes: a verb that changes much does so in slices, and no other verb comes between them.

A publish of 10,000 messages takes tens of milliseconds, which is too long to hold the event loop
for. It is still one commit, and nobody may see half of it (P2, S3). So such a verb takes its time
in steps. When a slice is used up it lets the loop do other work: requests are read and decoded,
replies are sent. Other verbs wait until the last step, and so does the next commit.

A change that is done in one step costs nothing extra.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["STEP", "LongChanges"]

#: Messages or settlements that are worked on between two looks at the clock: under a millisecond,
#: and one step for the batches that most callers publish.
STEP: Final = 100


class LongChanges:
    """Whether a long change is under way, and who waits for its end. Lives on the event loop."""

    __slots__ = ("_slice_s", "_waiting", "under_way", "when_over")

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Verbs that begin, or go on after an await, must not while this is True.
        self.under_way = False
        #: Called whenever a long change is over; the committer commits what it left for later.
        self.when_over: Callable[[], None] = _nothing

    async def over(self) -> None:
        """Wait until no long change is under way; that holds until the next await."""
        while self.under_way:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def begin(self, steps: Iterator[None]) -> bool:
        """Take the steps of a change that fit into one slice; returns whether those were all.

        If not, the caller awaits ``finish`` at once. No other change may be under way.
        """
        ends: float | None = None
        for _ in steps:
            now = asyncio.get_running_loop().time()
            if ends is None:
                ends = now + self._slice_s
            if now >= ends:
                return False
        return True

    async def finish(self, steps: Iterator[None]) -> None:
        """Take the other steps, in slices.

        A change cannot be left half done: a caller that is cancelled hears of it after the last
        step.
        """
        time = asyncio.get_running_loop().time
        cancelled: asyncio.CancelledError | None = None
        self.under_way = True
        try:
            is_over = False
            while not is_over:
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError as error:
                    cancelled = error
                ends = time() + self._slice_s
                is_over = all(time() < ends for _ in steps)
        finally:
            self._end()
        if cancelled is not None:
            raise cancelled

    def _end(self) -> None:
        self.under_way = False
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self.when_over()


def _nothing() -> None:
    """Until the committer is there."""
