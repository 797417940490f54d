"""LISTEN and NOTIFY: servers tell each other which queues are ready (C5).

One connection of its own does both, beside the pool. PostgreSQL says which session a
notification came from, so a server knows its own, and passes them by. It holds a lock that all
who notify share from there to the end of the commit; here that is a transaction of nothing
else, which does not wait for the disk.

Servers also say that they are there: when they begin to listen, which the others answer, and again
and again. One that has heard nobody for a while is alone, and tells nobody what it did.

Nothing depends on any of this but how soon: the store is polled too. A connection that is lost
is made again, sooner first and then less often, and whoever listens is told that anything may
have been missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from penstock.storage.sql.ending import end
from penstock.storage.sql.postgresql.failures import FAILURES

__all__ = ["NOTIFY", "Listening", "announcements"]

#: Tells every server what :func:`announcements` gives, when the transaction commits.
NOTIFY: Final = "SELECT pg_notify('penstock', said) FROM unnest($1::text[]) AS said"
_CHANNEL: Final = "penstock"
_PREPARE: Final = "SET synchronous_commit = off"
_HELLO: Final = "hello"
_HERE: Final = "here"
#: Queues in one notification, each of nine characters at the most: it has to be below 8000.
_QUEUES_A_TIME: Final = 800
#: Seconds before the first try to connect again, and before later ones.
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 10.0
#: Seconds after which a server says again that it is there, which also shows whether its
#: connection is, and how many the database is given to take that.
_HERE_EVERY_S: Final = 15.0
_PATIENCE_S: Final = 10.0
#: Seconds after which a server that was not heard is taken to be gone.
_ALONE_AFTER_S: Final = 4 * _HERE_EVERY_S

_log = logging.getLogger("penstock.storage")


def announcements(queues: Sequence[int]) -> list[str]:
    """What to say so that other servers know of these queues."""
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
        #: One statement at a time is all that a connection takes.
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        #: When another server was last heard.
        self._heard_at: float | None = None
        #: Answers to those who said hello.
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def hears(self) -> bool:
        """Whether the connection is there."""
        return self._connection is not None

    @property
    def has_company(self) -> bool:
        """Whether another server was heard, and not too long ago."""
        now = asyncio.get_running_loop().time()
        return self._heard_at is not None and now - self._heard_at < _ALONE_AFTER_S

    async def start(self, heard: Callable[[Sequence[int]], None]) -> None:
        """Call ``heard`` with queues that others say are ready; with none: all may be.

        Returns when the first try to connect is over, whatever became of it.
        """
        self._heard = heard
        tried = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep(tried))
        await tried.wait()

    async def tell(self, queues: Sequence[int]) -> None:
        """Tell the others. Without a connection nobody is told, and polls instead."""
        await self._tell(announcements(queues))

    async def _tell(self, said: Sequence[str]) -> None:
        async with self._turn:
            connection = self._connection
            if connection is None:
                return
            try:
                await self._say(connection, said)
            except FAILURES as error:
                _log.debug("other servers could not be told: %s", error)
                # It may not know yet that it is lost; whoever listens is to make another.
                connection.terminate()

    async def _say(self, connection: Any, said: Sequence[str]) -> None:
        await connection.execute(NOTIFY, said, timeout=_PATIENCE_S)

    async def close(self) -> None:
        """Listen no more. Closing twice is fine."""
        await end(self._task, *self._answers)
        self._task = None

    async def _keep(self, tried: asyncio.Event) -> None:
        """Listen, on one connection after the other."""
        pause = _FIRST_PAUSE_S
        try:
            while True:
                try:
                    connection = await self._connect()
                    pause = _FIRST_PAUSE_S
                    await self._listen(connection, tried)
                    _log.info("the connection that listens to other servers was lost")
                except FAILURES as error:
                    _log.info("other servers are not heard: %s", error)
                tried.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)
        finally:
            tried.set()

    async def _listen(self, connection: Any, tried: asyncio.Event) -> None:
        """Listen until the connection is gone."""
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.execute(_PREPARE, timeout=_PATIENCE_S)
            await connection.add_listener(_CHANNEL, self._hear)
            await self._say(connection, [_HELLO])
            self._connection = connection
            tried.set()
            # What was said while nobody listened was missed.
            self._heard(())
            while not await _within(gone, _HERE_EVERY_S):
                async with self._turn:
                    await self._say(connection, [_HERE])
        finally:
            self._connection = None
            await _end(connection)

    def _hear(self, connection: Any, sender: int, _channel: str, said: object) -> None:
        if connection.is_closed() or sender == connection.get_server_pid():
            return
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if said == _HELLO:
            answer = loop.create_task(self._tell([_HERE]))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
        if said in (_HELLO, _HERE):
            return
        try:
            queues = [int(number, 16) for number in str(said).split()]
        except ValueError:
            _log.debug("%r is not what a server says", said)
            return
        if queues:
            self._heard(queues)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it happens in that time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def _end(connection: Any) -> None:
    """Take leave of the connection, politely if it answers."""
    try:
        await connection.close(timeout=1)
    except FAILURES:
        connection.terminate()


def _nobody(queues: Sequence[int]) -> None:
    """Nobody listens yet."""
