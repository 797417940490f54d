"""The buffer between the claims of a consumer and the tasks that take them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from penstock.consume.hold import Fate, Hold

__all__ = ["ClaimBuffer"]


class ClaimBuffer:
    """Claims that no task has taken yet, and the tasks that wait for one."""

    def __init__(self) -> None:
        self._holds: deque[Hold] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._holds)

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for a claim that is not in the buffer.

        Takers of those that are in the buffer were woken, and wait no longer.
        """
        return bool(self._takers)

    def add(self, holds: Iterable[Hold]) -> None:
        """Add claims; as many takers are woken."""
        self._holds.extend(holds)
        for _ in range(min(len(self._holds), len(self._takers))):
            self._wake_one()

    def take(self, most: int) -> list[Hold]:
        """Up to ``most`` claims, oldest first, without those that were lost meanwhile."""
        holds = self._holds
        taken: list[Hold] = []
        # Not a test for emptiness: a thread of ``penstock.sync`` may take too.
        try:
            while len(taken) < most:
                hold = holds.popleft()
                if hold.fate is Fate.HELD:
                    taken.append(hold)
        except IndexError:
            pass
        return taken

    async def wait(self) -> bool:
        """Wait until there may be something to take; False if there never will be."""
        if self._is_ended:
            return False
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            await taker
        except BaseException:
            if taker.cancelled():
                with suppress(ValueError):
                    self._takers.remove(taker)
            elif self._holds:
                # It was woken and cancelled before it could take.
                self._wake_one()
            raise
        return True

    def clear(self) -> list[Hold]:
        """Remove and return the claims."""
        return self.take(len(self._holds))

    def end(self) -> None:
        """Wake the takers for the last time: nothing more will come."""
        self._is_ended = True
        while self._takers:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return
