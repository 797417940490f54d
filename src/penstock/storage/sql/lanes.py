"""Lanes: calls of one kind that come while others are under way share the next transaction.

A lane has one transaction under way at a time, or a few; whoever comes meanwhile is in the next
one. Under load a commit carries what many calls brought, and a lone call waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

__all__ = ["Call", "Lane", "Lanes"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")


class Call(Generic[T, R]):
    """One call in a lane: what is asked for, and whoever waits for the answer."""

    __slots__ = ("_answer", "asked", "weight")

    def __init__(self, asked: T, weight: int) -> None:
        self.asked = asked
        self.weight = weight
        self._answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    @property
    def waiting(self) -> bool:
        """Whether the caller is still there."""
        return not self._answer.done()

    def answer(self, reply: R) -> None:
        """The call is done."""
        if not self._answer.done():
            self._answer.set_result(reply)

    def refuse(self, error: BaseException) -> None:
        """The call has failed."""
        if not self._answer.done():
            self._answer.set_exception(error)

    async def answered(self) -> R:
        """Wait for the answer. Whoever is cancelled here does not know what became of it."""
        return await self._answer


class Lane(Generic[T, R]):
    """One lane. ``perform`` answers or refuses every call that it is given."""

    def __init__(
        self,
        perform: Callable[[Sequence[Call[T, R]]], Awaitable[None]],
        most: int,
        abreast: int = 1,
    ) -> None:
        self._perform = perform
        self._most = most
        self._abreast = abreast
        self._waiting: list[Call[T, R]] = []
        self._busy = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, asked: T, weight: int = 1) -> R:
        """Make the call in one of the next transactions."""
        call: Call[T, R] = Call(asked, weight)
        self._waiting.append(call)
        if len(self._tasks) < self._abreast:
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)
        return await call.answered()

    async def _run(self) -> None:
        try:
            while self._waiting:
                calls = self._take()
                self._busy += 1
                try:
                    await self._perform([call for call in calls if call.waiting])
                except BaseException as error:
                    for call in calls:
                        call.refuse(error)
                    if isinstance(error, asyncio.CancelledError):
                        raise
                finally:
                    self._busy -= 1
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)

    def _take(self) -> list[Call[T, R]]:
        """The calls that have waited longest, as many as one transaction should carry.

        Where more than one may be under way, those that are not share what waits.
        """
        share = -(-len(self._waiting) // (self._abreast - self._busy))
        weight = taken = 0
        for call in self._waiting[:share]:
            weight += call.weight
            if taken and weight > self._most:
                break
            taken += 1
        calls, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return calls

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class Lanes(Generic[K, T, R]):
    """A lane a key: a tenant, a queue. A lane that is idle costs an entry in a dict."""

    def __init__(
        self,
        perform: Callable[[K, Sequence[Call[T, R]]], Awaitable[None]],
        most: int,
        abreast: int = 1,
    ) -> None:
        self._perform = perform
        self._most = most
        self._abreast = abreast
        self._lanes: dict[K, Lane[T, R]] = {}

    async def call(self, key: K, asked: T, weight: int = 1) -> R:
        """Make the call in the lane of this key."""
        lane = self._lanes.get(key)
        if lane is None:

            async def perform(calls: Sequence[Call[T, R]]) -> None:
                await self._perform(key, calls)

            lane = self._lanes[key] = Lane(perform, self._most, self._abreast)
        return await lane.call(asked, weight)

    async def drain(self) -> None:
        """Wait until nothing is under way in any lane."""
        for lane in list(self._lanes.values()):
            await lane.drain()
