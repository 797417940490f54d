"""Batching: concurrent calls of one kind share transactions.

A batcher runs one transaction at a time; calls that arrive meanwhile share the next one. Under load
one commit serves many calls, and a single call never waits for others. If so many calls wait that
preparing their transaction takes a while, it starts beside the one that is running.

If a transaction fails because of one call, it is rolled back and its calls are retried one by
one, so that only that call fails (E1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from penstock.errors import StoreCorrupt, StoreError

__all__ = ["Call", "CallBatcher", "CallBatchers"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")


class Call(Generic[T, R]):
    """One call of a batcher: its arguments, and the future of its caller."""

    __slots__ = ("_answer", "asked", "weight")

    def __init__(self, asked: T, weight: int) -> None:
        self.asked = asked
        self.weight = weight
        self._answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    @property
    def waiting(self) -> bool:
        """Whether the caller still waits."""
        return not self._answer.done()

    def answer(self, reply: R) -> None:
        """Complete the call."""
        if not self._answer.done():
            self._answer.set_result(reply)

    def refuse(self, error: BaseException) -> None:
        """Fail the call."""
        if not self._answer.done():
            self._answer.set_exception(error)

    async def answered(self) -> R:
        """Wait for the answer. A caller that is cancelled here does not learn the outcome."""
        return await self._answer


class CallBatcher(Generic[T, R]):
    """One batcher. ``perform`` gets one or more calls, and answers or refuses each of them.

    A transaction carries a weight of at most ``most``, unless it serves a single call. A second
    transaction starts beside the first if at least ``beside`` waits; None: it never does.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[Call[T, R]]], Awaitable[None]],
        most: int,
        beside: int | None = None,
    ) -> None:
        self._perform = perform
        self._most = most
        self._beside = beside
        self._waiting: list[Call[T, R]] = []
        self._weight = 0
        """Of the waiting calls."""
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, asked: T, weight: int = 1) -> R:
        """Make the call in one of the next transactions."""
        call: Call[T, R] = Call(asked, weight)
        self._waiting.append(call)
        self._weight += weight
        self._begin()
        return await call.answered()

    def _begin(self) -> None:
        """Start another transaction, if one is due."""
        if self._waiting and self._goes_beside(len(self._tasks)):
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)

    def _goes_beside(self, others: int) -> bool:
        """Whether the waiting calls may start beside this many transactions."""
        if others == 0:
            return True
        return others == 1 and self._beside is not None and self._weight >= self._beside

    async def _run(self) -> None:
        try:
            while self._waiting and self._goes_beside(len(self._tasks) - 1):
                calls = self._take()
                self._under_way += 1
                self._begin()
                try:
                    await self._serve(calls)
                finally:
                    self._under_way -= 1
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)

    async def _serve(self, calls: Sequence[Call[T, R]]) -> None:
        """Answer or refuse the calls whose callers still wait; errors go to the callers."""
        waiting = [call for call in calls if call.waiting]
        if not waiting:
            return
        try:
            await self._perform(waiting)
        except BaseException as error:
            if len(waiting) > 1 and _is_of_one_call(error):
                for call in waiting:
                    await self._serve([call])
                return
            for call in waiting:
                call.refuse(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _take(self) -> list[Call[T, R]]:
        """The calls that have waited longest, as many as one transaction should carry.

        If no transaction is running and enough waits for two, take half.
        """
        most = self._most
        beside = self._beside
        if beside is not None and not self._under_way and self._weight >= 2 * beside:
            most = min(most, self._weight // 2)
        weight = taken = 0
        for call in self._waiting:
            if taken and weight + call.weight > most:
                break
            weight += call.weight
            taken += 1
        calls, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._weight -= weight
        return calls

    async def drain(self) -> None:
        """Wait until no transaction is running."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def _is_of_one_call(error: BaseException) -> bool:
    """Whether other calls may succeed: nothing was committed, and the database is not the cause."""
    match error:
        case StoreCorrupt():
            return True
        case StoreError():
            # Exactly this class: the database refused a statement, perhaps because of a value.
            return type(error) is StoreError
        case _:
            return isinstance(error, Exception)


class CallBatchers(Generic[K, T, R]):
    """One batcher per key: a tenant, a queue. An idle batcher costs a dict entry."""

    def __init__(
        self,
        perform: Callable[[K, Sequence[Call[T, R]]], Awaitable[None]],
        most: int,
        beside: int | None = None,
    ) -> None:
        self._perform = perform
        self._most = most
        self._beside = beside
        self._batchers: dict[K, CallBatcher[T, R]] = {}

    async def call(self, key: K, asked: T, weight: int = 1) -> R:
        """Make the call in the batcher of this key."""
        batcher = self._batchers.get(key)
        if batcher is None:

            async def perform(calls: Sequence[Call[T, R]]) -> None:
                await self._perform(key, calls)

            batcher = self._batchers[key] = CallBatcher(perform, self._most, self._beside)
        return await batcher.call(asked, weight)

    async def drain(self) -> None:
        """Wait until no transaction is running in any batcher."""
        for batcher in list(self._batchers.values()):
            await batcher.drain()
