"""Batches the settlements of one consumer and queue into shared calls.

One call is under way at a time. Settlements that arrive meanwhile go into the next one, so a
consumer with many tasks makes few calls, and a lone settlement does not wait. There is no timer.

If a call is refused because of one of its settlements, they are sent separately, so that each is
settled or refused on its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from itertools import accumulate
from typing import Final, TypeAlias

from penstock.errors import BadInput, Conflict, PenstockError
from penstock.model.delivery import Ack, Nack, Outcome, Reject, Settlement

__all__ = ["REFUSALS", "Answer", "SettlementBatcher"]

#: Settles these; returns the outcomes in order.
Send: TypeAlias = Callable[[Sequence[Settlement]], Awaitable[Sequence[Outcome]]]
#: The answer to one settlement: its outcome, or the error of its call.
Answer: TypeAlias = Outcome | PenstockError

_Part: TypeAlias = "tuple[_Group, Sequence[Settlement]]"

#: Errors that may concern one settlement; any other concerns the whole call.
REFUSALS: Final = (BadInput, Conflict)
#: Results and errors in one call, in bytes; a single one may be larger.
_MAX_CALL_BYTES: Final = 512 * 1024


class SettlementBatcher:
    """The settlements that wait for the next call."""

    def __init__(self, send: Send, most: int, idle: Callable[[], None], context: Context) -> None:
        self._send = send
        #: Settlements in one call.
        self._most = most
        #: Called when nothing is left to send.
        self._idle = idle
        #: The calls are shared, so they must not run in the context of the task that begins one.
        self._context = context
        self._groups: deque[_Group] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_due = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and no call is under way."""
        return not self._groups and self._sending is None

    def add(self, settlements: Sequence[Settlement]) -> asyncio.Future[Sequence[Answer]]:
        """A future of the answers, in order."""
        loop = asyncio.get_running_loop()
        group = _Group(settlements, loop.create_future())
        self._groups.append(group)
        if self._sending is None and not self._is_due:
            # At the end of this turn of the loop: other tasks may be about to settle, too.
            self._is_due = True
            loop.call_soon(self._start, context=self._context)
        return group.answered

    async def flushed(self) -> None:
        """Return when all settlements that were added have been answered."""
        while not self.is_idle:
            if self._sending is None:
                await asyncio.sleep(0)
            else:
                await asyncio.wait((self._sending,))

    def _start(self) -> None:
        self._is_due = False
        self._sending = asyncio.get_running_loop().create_task(
            self._send_all(), context=self._context
        )

    async def _send_all(self) -> None:
        try:
            while self._groups:
                parts = self._take_some()
                if parts:
                    await self._send_parts(parts)
                    if not self._groups:
                        # Tasks that were just answered run first, and often settle again.
                        await asyncio.sleep(0)
        finally:
            self._sending = None
            while self._groups:  # The loop is ending.
                self._groups.popleft().answered.cancel()
            self._idle()

    def _take_some(self) -> list[_Part]:
        """What goes into the next call."""
        parts: list[_Part] = []
        room, room_bytes = self._most, _MAX_CALL_BYTES
        while self._groups and room > 0:
            group = self._groups[0]
            if group.answered.done():
                self._groups.popleft()  # The caller was cancelled.
                continue
            if parts and group.size > room_bytes:
                break
            part = group.take(room, room_bytes)
            parts.append((group, part))
            room -= len(part)
            room_bytes -= group.size
            if not group.is_sent:
                break
            self._groups.popleft()
        return parts

    async def _send_parts(self, parts: list[_Part]) -> None:
        settlements = parts[0][1]
        if len(parts) > 1:
            settlements = [item for _, part in parts for item in part]
        try:
            answers = await self._answers(settlements)
        except BaseException:
            for group, _ in parts:
                group.answered.cancel()
            raise
        begin = 0
        for group, part in parts:
            end = begin + len(part)
            group.answer(answers[begin:end])
            begin = end

    async def _answers(self, settlements: Sequence[Settlement]) -> Sequence[Answer]:
        """Settle; if that is refused, settle the halves, down to the one to blame."""
        try:
            return await self._send(settlements)
        except PenstockError as error:
            if len(settlements) <= 1 or not isinstance(error, REFUSALS):
                return [error] * len(settlements)
        middle = len(settlements) // 2
        first = await self._answers(settlements[:middle])
        return (*first, *await self._answers(settlements[middle:]))


class _Group:
    """Settlements that were added together, and are answered together."""

    __slots__ = ("_answers", "_sent", "_settlements", "answered", "size")

    def __init__(
        self,
        settlements: Sequence[Settlement],
        answered: asyncio.Future[Sequence[Answer]],
    ) -> None:
        self.answered = answered
        #: The bytes of their results and errors.
        self.size = sum(map(_carried_bytes, settlements))
        self._settlements = settlements
        self._sent = 0
        self._answers: list[Answer] = []

    @property
    def is_sent(self) -> bool:
        """Whether no part is left to send."""
        return self._sent == len(self._settlements)

    def take(self, room: int, room_bytes: int) -> Sequence[Settlement]:
        """The next part: at least one settlement, and no more than there is room for."""
        begin = self._sent
        end = min(len(self._settlements), begin + room)
        if self.size > room_bytes:
            carried = accumulate(map(_carried_bytes, self._settlements[begin:end]))
            end = begin + max(1, sum(size <= room_bytes for size in carried))
        self._sent = end
        return self._settlements[begin:end]

    def answer(self, answers: Sequence[Answer]) -> None:
        """Add the answers to the part that was taken; the last one answers the group."""
        if len(answers) < len(self._settlements):
            self._answers += answers
            if len(self._answers) < len(self._settlements):
                return
            answers = self._answers
        if not self.answered.done():
            self.answered.set_result(answers)


def _carried_bytes(settlement: Settlement) -> int:
    """About the size of the result or error; one of another type is refused later."""
    if type(settlement) is Ack:
        carried: object = settlement.result
    elif isinstance(settlement, Nack | Reject):
        carried = settlement.error
    else:
        return 0
    return len(carried) if isinstance(carried, bytes | str) else 0
