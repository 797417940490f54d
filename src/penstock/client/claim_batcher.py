"""Lets claims of one delivery each share a request.

Tasks that take a message at a time wake together, when a shared settle is answered, and all claim
again in that turn of the event loop. They ask together for as many deliveries, which the server
leases apart: as if each had claimed alone. A caller that gets none claims again alone, and
waits in a place of its own at the server. Callers do not notice.

A claim that is alone in its turn is sent by its own caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import NamedTuple, TypeAlias

from penstock.errors import BadInput
from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_CLAIM

__all__ = ["ClaimBatcher", "ClaimKind"]


class ClaimKind(NamedTuple):
    """What claims have in common that share a request."""

    queue: str
    consumer: str
    lease_ms: int | None
    wait_ms: int


#: Claims up to so many deliveries, waiting for so long.
Ask: TypeAlias = Callable[[ClaimKind, int, int], Awaitable[list[Delivery]]]
#: Releases deliveries of a queue that no caller works on.
GiveBack: TypeAlias = Callable[[str, Sequence[Delivery]], Coroutine[object, object, None]]
#: What a shared request has for a caller; None: it has to claim alone.
_Answer: TypeAlias = "asyncio.Future[list[Delivery] | None]"


class ClaimBatcher:
    """The claims that are made in the current turn of the event loop, by kind."""

    def __init__(self, ask: Ask, give_back: GiveBack) -> None:
        self._ask = ask
        self._give_back = give_back
        #: Those that joined the first of their kind in this turn.
        self._joining: dict[ClaimKind, list[_Answer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(self, kind: ClaimKind) -> list[Delivery]:
        """Lease one delivery, or none."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        shared = await self._join(kind)
        if shared is None:
            return await self._ask(kind, 1, kind.wait_ms)
        try:
            found = await shared
        except asyncio.CancelledError:
            self._release_late(kind, shared)
            raise
        if found is None:
            waited_ms = round((loop.time() - begin) * 1000)
            return await self._ask(kind, 1, max(0, kind.wait_ms - waited_ms))
        return found

    async def drain(self) -> None:
        """Wait for shared requests, which do not wait for deliveries, and for releases."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _join(self, kind: ClaimKind) -> _Answer | None:
        """The answer of a request that is shared in this turn; None if there is no other claim."""
        answer: _Answer = asyncio.get_running_loop().create_future()
        joined = self._joining.get(kind)
        if joined is not None:
            if len(joined) == MAX_CLAIM - 1:
                return None
            joined.append(answer)
            return answer
        joined = self._joining[kind] = []
        try:
            await asyncio.sleep(0)
            if not joined:
                return None
            joined.insert(0, answer)
            return answer
        finally:
            del self._joining[kind]
            if joined:
                self._start(self._claim(kind, joined))

    async def _claim(self, kind: ClaimKind, callers: list[_Answer]) -> None:
        """Claim for all callers that are still there."""
        wanted = len(_waiting(callers))
        try:
            found = await self._ask(kind, wanted, 0) if wanted else []
        except BadInput:
            # Perhaps an older server, which cannot lease apart.
            _answer_all(callers, None)
        except BaseException as error:
            for answer in _waiting(callers):
                answer.set_exception(error)
            raise
        else:
            waiting = _waiting(callers)
            for answer, delivery in zip(waiting, found, strict=False):
                answer.set_result([delivery])
            self._release(kind, found[len(waiting) :])
            _answer_all(callers, None if found or kind.wait_ms else [])

    def _release_late(self, kind: ClaimKind, answer: _Answer) -> None:
        """Release what came for a caller in the turn in which it was cancelled."""
        if not answer.cancelled() and answer.exception() is None:
            self._release(kind, answer.result() or ())

    def _release(self, kind: ClaimKind, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self._start(self._give_back(kind.queue, deliveries))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps weak references only.
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Every caller got it.


def _waiting(callers: Sequence[_Answer]) -> list[_Answer]:
    """Those that have neither been answered nor left."""
    return [answer for answer in callers if not answer.done()]


def _answer_all(callers: Sequence[_Answer], found: list[Delivery] | None) -> None:
    for answer in _waiting(callers):
        answer.set_result(found)
