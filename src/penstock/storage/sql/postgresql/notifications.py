"""LISTEN and NOTIFY: servers notify each other of ready queues (C5).

One dedicated connection does both. PostgreSQL names the session that sent a notification, so a
server recognises and skips its own. During a commit with notifications PostgreSQL holds a lock
that all notifying sessions share; here that is a transaction of nothing else, which does not
wait for the disk.

Servers also announce themselves: when they begin to listen, which the others answer, and then at
intervals. A server that has heard no other for a while assumes that it is alone, and sends no
notifications.

Only latency depends on this: the store is polled too. A lost connection is reopened, at growing
intervals, and the engine is then informed that notifications may have been missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from penstock.storage.sql.database import end
from penstock.storage.sql.postgresql.error_mapping import FAILURES

__all__ = ["NOTIFY", "Listening", "announcements"]

#: Sends the result of :func:`announcements` to every server when the transaction commits.
NOTIFY: Final = "SELECT pg_notify('penstock', said) FROM unnest($1::text[]) AS said"
_CHANNEL: Final = "penstock"
_PREPARE: Final = "SET synchronous_commit = off"
_HELLO: Final = "hello"
_HERE: Final = "here"
#: Queues per notification, each of at most nine characters: a payload must be below 8000.
_QUEUES_A_TIME: Final = 800
#: Seconds before the first attempt to reconnect, and the maximum before later ones.
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 10.0
#: Seconds between announcements, which also test the connection, and the timeout of each
#: statement.
_HERE_EVERY_S: Final = 15.0
_PATIENCE_S: Final = 10.0
#: Seconds after which a silent server is considered gone.
_ALONE_AFTER_S: Final = 4 * _HERE_EVERY_S

_log = logging.getLogger("penstock.storage")


def announcements(queues: Sequence[int]) -> list[str]:
    """The payloads that notify other servers of these queues."""
    return [
        " ".join(f"{queue:x}" for queue in queues[first : first + _QUEUES_A_TIME])
        for first in range(0, len(queues), _QUEUES_A_TIME)
    ]


class Listening:
    """The one connection that listens and notifies."""

    def __init__(self, connect: Callable[[], Awaitable[Any]]) -> None:
        self._connect = connect
        self._heard: Callable[[Sequence[int]], None] = _nobody
        self._connection: Any = None
        #: A connection runs one statement at a time.
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        #: When another server was last heard.
        self._heard_at: float | None = None
        #: Running answers to hello messages.
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def hears(self) -> bool:
        """Whether it is connected."""
        return self._connection is not None

    @property
    def has_company(self) -> bool:
        """Whether another server was heard recently."""
        now = asyncio.get_running_loop().time()
        return self._heard_at is not None and now - self._heard_at < _ALONE_AFTER_S

    async def start(self, heard: Callable[[Sequence[int]], None]) -> None:
        """Call ``heard`` with queues that other servers report as ready; empty if all may be.

        Returns after the first attempt to connect, even if it failed.
        """
        self._heard = heard
        tried = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep(tried))
        await tried.wait()

    async def broadcast(self, queues: Sequence[int]) -> None:
        """Notify the other servers. Without a connection this does nothing, and they poll."""
        await self._send(announcements(queues))

    async def _send(self, said: Sequence[str]) -> None:
        async with self._turn:
            connection = self._connection
            if connection is None:
                return
            try:
                await self._execute_notify(connection, said)
            except FAILURES as error:
                _log.debug("other servers could not be notified: %s", error)
                # The driver may not have noticed the loss yet; this makes ``_keep`` reconnect.
                connection.terminate()

    async def _execute_notify(self, connection: Any, said: Sequence[str]) -> None:
        await connection.execute(NOTIFY, said, timeout=_PATIENCE_S)

    async def close(self) -> None:
        """Stop listening. Closing twice is fine."""
        await end(self._task, *self._answers)
        self._task = None

    async def _keep(self, tried: asyncio.Event) -> None:
        """Listen, and reconnect whenever the connection is lost."""
        pause = _FIRST_PAUSE_S
        try:
            while True:
                try:
                    connection = await self._connect()
                    pause = _FIRST_PAUSE_S
                    await self._listen(connection, tried)
                    _log.info("the connection that listens to other servers was lost")
                except FAILURES as error:
                    _log.info("cannot listen to other servers: %s", error)
                tried.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)
        finally:
            tried.set()

    async def _listen(self, connection: Any, tried: asyncio.Event) -> None:
        """Listen until the connection is lost."""
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.execute(_PREPARE, timeout=_PATIENCE_S)
            await connection.add_listener(_CHANNEL, self._hear)
            await self._execute_notify(connection, [_HELLO])
            self._connection = connection
            tried.set()
            # Notifications sent before LISTEN were missed.
            self._heard(())
            while not await _within(gone, _HERE_EVERY_S):
                async with self._turn:
                    await self._execute_notify(connection, [_HERE])
        finally:
            self._connection = None
            await _end(connection)

    def _hear(self, connection: Any, sender: int, _channel: str, said: object) -> None:
        if connection.is_closed() or sender == connection.get_server_pid():
            return
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if said == _HELLO:
            answer = loop.create_task(self._send([_HERE]))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
        if said in (_HELLO, _HERE):
            return
        try:
            queues = [int(number, 16) for number in str(said).split()]
        except ValueError:
            _log.debug("%r is not a notification of a server", said)
            return
        if queues:
            self._heard(queues)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within that time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def _end(connection: Any) -> None:
    """Close the connection, properly if it answers."""
    try:
        await connection.close(timeout=1)
    except FAILURES:
        connection.terminate()


def _nobody(queues: Sequence[int]) -> None:
    """Used until a listener is set."""
