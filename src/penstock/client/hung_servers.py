"""Leaves a server that hangs, once another server of the same store writes.

A server that is paused, or cut off from its object store, may keep a call until the client's
timeout. Where servers stand by for each other, another one writes after a few seconds. So while a
call waits for more than a second, the client asks its server which role it has (``/healthz``). If
it does not answer, or no longer writes, the client asks the others too. As soon as one of them
writes, the call ends with ``ConnectionLost``: its outcome is unknown, as after a lost connection.

Servers of a store in a database all write, and name no writer, like servers of older versions. The
first such answer ends the questions for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from msgspec import Struct

from penstock.client.connection import ConnectionLost
from penstock.client.transport import Exchanges, Request
from penstock.errors import PenstockError

__all__ = ["HungServers"]

#: A call that takes longer makes the client ask.
_PATIENCE_S: Final = 1.0
#: Between two questions while the server in use says that it writes. It costs one request.
_CALM_S: Final = 2.0
#: Between two rounds while it does not, and how long a server has to answer.
_ALARMED_S: Final = 0.5
#: For how long a server that did not answer is the last choice.
_SILENT_S: Final = 3.0


class _Health(Struct, frozen=True):
    """The part of a health reply that is read here."""

    role: str = ""
    writer: str | None = None


class _Waiting(Struct, eq=False):
    """A call without an answer so far."""

    server: int
    since: float
    reads: bool
    """A server that stands by may answer it."""
    scope: asyncio.Timeout


_decoder: Final = msgspec.msgpack.Decoder(_Health)


class HungServers:
    """The calls that wait, and the task that asks servers about them."""

    def __init__(
        self, transports: Sequence[Exchanges], path: str, use: Callable[[int], None]
    ) -> None:
        """``path`` is the prefix of the servers' paths; ``use`` receives the one that writes."""
        self._transports = transports
        self._request = Request("GET", f"{path}/healthz")
        self._use = use
        self._waiting: set[_Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        #: When a server did not answer a question.
        self._silent: dict[int, float] = {}
        #: One server writes and the others stand by, as far as is known.
        self._exclusive = True

    @asynccontextmanager
    async def watched(self, server: int, request: Request) -> AsyncIterator[None]:
        """Runs one exchange; raises ``ConnectionLost`` in it when its server should be left."""
        if not self._exclusive:
            yield
            return
        loop = asyncio.get_running_loop()
        scope = asyncio.timeout(None)
        call = _Waiting(server, loop.time(), request.method == "GET", scope)
        try:
            async with scope:
                self._waiting.add(call)
                if self._timer is None and self._task is None:
                    self._timer = loop.call_later(_PATIENCE_S, self._look)
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise ConnectionLost("it hangs, and another server writes", sent=True) from error
        finally:
            self._waiting.discard(call)

    def was_silent(self, server: int) -> bool:
        """Whether the server did not answer a question a moment ago."""
        now = asyncio.get_running_loop().time()
        return now - self._silent.get(server, -_SILENT_S) < _SILENT_S

    async def find_writer(self) -> None:
        """After a failure: use the server that writes, if one says so."""
        if not self._exclusive:
            return
        roles = await self._ask(range(len(self._transports)))
        writer = next((server for server, role in roles.items() if role == "writer"), None)
        if writer is not None and self._exclusive:
            self._use(writer)

    async def close(self) -> None:
        """Ask no more."""
        self._exclusive = False
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _look(self) -> None:
        """The timer: begin to ask if a call is late; else look again when one may be."""
        self._timer = None
        if not self._waiting or not self._exclusive:
            return
        loop = asyncio.get_running_loop()
        late_s = min(call.since for call in self._waiting) + _PATIENCE_S - loop.time()
        if late_s > 0:
            self._timer = loop.call_later(late_s, self._look)
        else:
            self._task = loop.create_task(self._ask_while_late(), name="penstock-hung-servers")

    async def _ask_while_late(self) -> None:
        alarmed = False
        try:
            while self._exclusive and (late := self._late()):
                until = asyncio.get_running_loop().time() + _ALARMED_S
                alarmed = await self._round(late, ask_all=alarmed)
                left_s = until - asyncio.get_running_loop().time()
                await asyncio.sleep(max(0, left_s) if alarmed else _CALM_S)
        finally:
            self._task = None
            self._look()

    def _late(self) -> list[_Waiting]:
        oldest = asyncio.get_running_loop().time() - _PATIENCE_S
        return [call for call in self._waiting if call.since <= oldest]

    async def _round(self, late: list[_Waiting], *, ask_all: bool) -> bool:
        """Ask, and leave servers if another one writes. Returns whether one of them is suspect."""
        used = {call.server for call in late}
        roles = await self._ask(range(len(self._transports)) if ask_all else used)
        suspects = {server for server in used if roles[server] != "writer"}
        if suspects and not ask_all:
            roles |= await self._ask(set(range(len(self._transports))) - used)
        writer = next((server for server, role in roles.items() if role == "writer"), None)
        if suspects and writer is not None and self._exclusive:
            self._use(writer)
            for call in late:
                silent = roles[call.server] is None
                if call in self._waiting and call.server in suspects and (silent or not call.reads):
                    self._waiting.discard(call)
                    call.scope.reschedule(0)
        return bool(suspects)

    async def _ask(self, servers: Sequence[int] | range | set[int]) -> dict[int, str | None]:
        """The role of each server; None for one that does not answer."""
        asked = list(servers)
        return dict(zip(asked, await asyncio.gather(*map(self._role, asked)), strict=True))

    async def _role(self, server: int) -> str | None:
        try:
            async with asyncio.timeout(_ALARMED_S):
                reply = await self._transports[server].exchange(self._request)
            health = _decoder.decode(reply.body)
        except (TimeoutError, ConnectionLost, PenstockError, msgspec.MsgspecError):
            self._silent[server] = asyncio.get_running_loop().time()
            return None
        self._silent.pop(server, None)
        if health.role not in ("standby", "reader") and health.writer is None:
            self._exclusive = False
        return health.role
