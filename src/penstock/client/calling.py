"""Calls: a request is retried until there is an answer, as long as that is safe and allowed.

Retries use exponential backoff with full jitter, bounded in number and time. Retried are

- requests that were never sent, or were refused for now (``Busy``, a store that is closing
  or still opening): nothing was done;
- requests without an answer, if they are repeatable: reading, publishing with idempotency
  ids (P4), claiming (C1: it only delays), settling (S1), and setting a state.

The time is counted from the first failure, so a claim that waited for half a minute is
retried too. At the bound the last error is raised: ``Unreachable`` if there was no
answer.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from penstock.client.connection import ConnectionLost
from penstock.client.http import Reply
from penstock.client.options import ClientOptions
from penstock.client.transport import Exchanges, Request
from penstock.errors import (
    BadReply,
    Busy,
    CommitFailed,
    PenstockError,
    QueueFull,
    StoreClosed,
    StoreUnavailable,
    Unreachable,
)
from penstock.wire.problems import read_problem, to_error

__all__ = ["Answer", "Calls", "read"]

T = TypeVar("T")

#: A proxy's statuses for an unavailable server; the request may have taken effect.
_PROXY_STATUSES: Final = frozenset({502, 503, 504})


class Answer(Struct, frozen=True, gc=False):
    """A reply, and whether an earlier attempt may have taken effect."""

    status: int
    body: bytes | memoryview
    repeated: bool


class _Failure(Struct, frozen=True):
    """A failed attempt."""

    error: PenstockError
    again: bool
    """Whether a retry is useful and safe."""
    effective: bool
    """Whether the request may have taken effect anyway."""
    after_ms: int = 0
    """The server's minimum wait before a retry."""


class Calls:
    """The calls of one client."""

    def __init__(self, transport: Exchanges, place: str, options: ClientOptions) -> None:
        self._transport = transport
        self._place = place
        self._options = options
        self._under_way = 0
        self._idle = asyncio.Event()
        self._gone = asyncio.Event()
        self._closing = False

    async def call(self, request: Request) -> Answer:
        """The answer to the request. Raises the last error."""
        if self._closing:
            raise _closed()
        if request.waits:
            return await self._call(request)
        self._under_way += 1
        try:
            return await self._call(request)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def drain(self) -> None:
        """Accept no more calls, and wait for those in progress.

        Calls that wait at the server are not awaited: they could take half a minute.
        """
        self._closing = True
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Close the connections; calls still waiting raise ``StoreClosed``."""
        self._closing = True
        self._gone.set()
        await self._transport.close()

    async def _call(self, request: Request) -> Answer:
        repeated = False
        timeouts: _Patience | None = None
        while True:
            try:
                reply = await self._transport.exchange(request)
            except ConnectionLost as lost:
                failure = self._lost(lost, request)
            else:
                if reply.status < 300 or reply.status == request.accepts:
                    return Answer(reply.status, reply.body, repeated)
                failure = self._refused(reply, request)
            repeated = repeated or failure.effective
            if not failure.again:
                raise failure.error
            timeouts = timeouts or _Patience(self._options)
            wait_ms = timeouts.wait_ms(failure.after_ms)
            if wait_ms is None:
                raise failure.error
            await self._sleep(wait_ms)

    async def _sleep(self, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._gone.wait()
        except TimeoutError:
            return
        raise _closed()

    def _lost(self, lost: ConnectionLost, request: Request) -> _Failure:
        if self._transport.is_closed:
            raise _closed() from lost
        outcome = "the outcome is unknown" if lost.sent else "nothing was sent"
        error = Unreachable(f"No answer from {self._place}: {lost}; {outcome}.")
        error.__cause__ = lost
        again = not lost.hopeless and (request.repeatable or not lost.sent)
        return _Failure(error, again, lost.sent)

    def _refused(self, reply: Reply, request: Request) -> _Failure:
        error = to_error(read_problem(reply.status, reply.body))
        match error:
            case QueueFull():
                again = self._options.retry_when_full
                return _Failure(error, again, effective=False, after_ms=error.retry_after_ms)
            case Busy():
                return _Failure(error, True, effective=False, after_ms=error.retry_after_ms)
            case BadReply() if reply.status in _PROXY_STATUSES:
                again = request.repeatable
                return _Failure(error, again, effective=True, after_ms=reply.retry_after_ms or 0)
            case CommitFailed():
                return _Failure(error, request.repeatable, effective=True)
            case StoreClosed() | StoreUnavailable():
                return _Failure(error, True, effective=False)
            case _:
                return _Failure(error, error.retryable, effective=False)


class _Patience:
    """The remaining retries of a failed call."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + options.retry_ms / 1000
        self._tries = 0

    def wait_ms(self, after_ms: int) -> int | None:
        """How long to wait before the next attempt; None if there is none left."""
        self._tries += 1
        if self._tries > self._options.retries:
            return None
        ceiling_ms = self._options.backoff.ceiling_ms(self._tries)
        wait_ms = after_ms + self._options.jitter(ceiling_ms)
        left_ms = (self._deadline - self._loop.time()) * 1000
        return wait_ms if wait_ms < left_ms else None


def read(decoder: msgspec.msgpack.Decoder[T], answer: Answer) -> T:
    """Decode the answer; ``BadReply`` if its body is not the expected one."""
    try:
        return decoder.decode(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        shown = bytes(answer.body[:80]).decode(errors="replace")
        raise BadReply(f"HTTP {answer.status} with an unexpected body: {shown!r}.") from error


def _closed() -> StoreClosed:
    return StoreClosed("The client is closed.")
