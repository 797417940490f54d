"""Lets claims of one delivery each share requests.

Tasks that take a message at a time wake together, when a shared settle is answered, and all claim
again in that turn of the event loop. They are sent as one claim of as many deliveries, which the
server leases apart: as if each had claimed alone. Callers do not notice.

A claim that is alone in its turn, with no other of its kind in progress, is sent by its own caller.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import NamedTuple, TypeAlias

from penstock.errors import BadInput, PenstockError
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
#: Releases deliveries of a queue that nobody works on.
GiveBack: TypeAlias = Callable[[str, Sequence[Delivery]], Coroutine[object, object, None]]


class ClaimBatcher:
    """The claims in progress, by kind."""

    def __init__(self, ask: Ask, give_back: GiveBack) -> None:
        self._ask = ask
        self._give_back = give_back
        self._under_way: Counter[ClaimKind] = Counter()
        #: Claims of this turn, to be sent at its end.
        self._joining: dict[ClaimKind, _Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(self, kind: ClaimKind) -> list[Delivery]:
        """Lease one delivery, or none."""
        if kind in self._joining or kind in self._under_way:
            return await self._claim_together(kind)
        group = self._joining[kind] = _Group(kind)
        try:
            await asyncio.sleep(0)  # Others may join in this turn.
        except asyncio.CancelledError:
            self._leave(group)
            raise
        if group.callers or self._joining.get(kind) is not group:
            return await self._claim_together(kind)
        del self._joining[kind]
        self._under_way[kind] = 1
        try:
            return await self._ask(kind, 1, kind.wait_ms)
        finally:
            self._ended(kind)

    async def close(self) -> None:
        """Wait for claims that end because their connections are closed."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _claim_together(self, kind: ClaimKind) -> list[Delivery]:
        group = self._joining.get(kind)
        if group is None:
            group = self._joining[kind] = _Group(kind)
        answer = group.join()
        if len(group.callers) == 1:
            group.loop.call_soon(self._leave, group)
        if len(group.callers) == MAX_CLAIM:
            self._leave(group)
        try:
            return await answer
        except asyncio.CancelledError:
            group.abandon()
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # It was answered in the turn in which it was cancelled.
                self._release(kind, answer.result())
            raise

    def _leave(self, group: _Group) -> None:
        """Send the claims of a group, once."""
        if self._joining.get(group.kind) is group:
            del self._joining[group.kind]
            if group.callers:
                self._send(group)

    def _send(self, group: _Group) -> None:
        self._under_way[group.kind] += 1
        group.task = self._start(self._serve(group))
        group.task.add_done_callback(lambda _: self._ended(group.kind))

    async def _serve(self, group: _Group) -> None:
        """Claim until all callers have a delivery, or there are no more."""
        while wanted := len(group.waiting()):
            try:
                found = await self._ask(group.kind, wanted, group.left_ms())
            except PenstockError as error:
                self._refuse(group, error, wanted)
                return
            waiting = group.waiting()
            for answer, delivery in zip(waiting, found, strict=False):
                answer.set_result([delivery])
            self._release(group.kind, found[len(waiting) :])
            if not found:
                for answer in waiting:
                    answer.set_result([])

    def _refuse(self, group: _Group, error: PenstockError, wanted: int) -> None:
        for answer in group.waiting():
            if wanted > 1 and isinstance(error, BadInput):
                # Perhaps an older server, which cannot lease apart.
                self._send(group.only(answer))
            else:
                answer.set_exception(error)

    def _release(self, kind: ClaimKind, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self._start(self._give_back(kind.queue, deliveries))

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps weak references only.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ended(self, kind: ClaimKind) -> None:
        self._under_way[kind] -= 1
        if not self._under_way[kind]:
            del self._under_way[kind]


class _Group:
    """Callers of one turn of the event loop, whose waits end at the same time."""

    __slots__ = ("_deadline", "callers", "kind", "loop", "task")

    def __init__(self, kind: ClaimKind) -> None:
        self.kind = kind
        self.loop = asyncio.get_running_loop()
        self.callers: list[asyncio.Future[list[Delivery]]] = []
        self.task: asyncio.Task[None] | None = None
        self._deadline = self.loop.time() + kind.wait_ms / 1000

    def join(self) -> asyncio.Future[list[Delivery]]:
        """The answer to another caller."""
        answer: asyncio.Future[list[Delivery]] = self.loop.create_future()
        self.callers.append(answer)
        return answer

    def waiting(self) -> list[asyncio.Future[list[Delivery]]]:
        """The callers that have neither been answered nor left."""
        self.callers = [answer for answer in self.callers if not answer.done()]
        return self.callers

    def left_ms(self) -> int:
        """How long the callers wait from now on."""
        return max(0, round((self._deadline - self.loop.time()) * 1000))

    def only(self, answer: asyncio.Future[list[Delivery]]) -> _Group:
        """A group of one of the callers."""
        group = _Group(self.kind)
        group._deadline = self._deadline
        group.callers.append(answer)
        return group

    def abandon(self) -> None:
        """End the request if its last caller has left."""
        if self.task is not None and not self.waiting():
            self.task.cancel()
