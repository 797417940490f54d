"""Watching: how a server hears what others did in the queues that it waits for (C5).

What a commit made ready is told to the other servers by the database, if it can: never in the
transaction itself, and together with whatever comes in the next milliseconds. Besides, the queues
that somebody waits for are polled, all in one statement. Where the database tells, that is a net
for what was not heard, once a second; where it does not, it is how anything is heard: often while
things happen, less and less while nothing does, and never for more than a small share of the time.
A queue that nobody waits for is not asked for.

Whatever is heard says no more than that looking may be worth it. So being told twice, of one's own
doing or by mistake costs a look, and not being told costs time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from penstock.model.limits import DLQ_SUFFIX, MAX_WAIT_MS
from penstock.storage.sql.clock import DatabaseClock
from penstock.storage.sql.core import Core
from penstock.storage.sql.ending import end

__all__ = ["Watch"]

#: Seconds that a queue is watched after somebody asked for it in vain: longer than any wait.
_INTEREST_S: Final = MAX_WAIT_MS / 1000 + 5
#: Seconds in which what is to be told gathers, after something was.
_GATHER_S: Final = 0.01
#: Seconds between two polls, where the database tells by itself.
_NET_S: Final = 1.0
#: Seconds between two polls where it does not: after a change, by which factor it grows while
#: there is none, and the longest.
_SOON_S: Final = 0.01
_GROWTH: Final = 1.5
_LATE_S: Final = 0.5
#: A poll is followed by a pause of so many times what it took.
_REST: Final = 5
#: Seconds after a poll that failed.
_FAILED_S: Final = 1.0
#: Seconds that closing waits for the last news to be told.
_PARTING_S: Final = 1.0

_log = logging.getLogger("penstock.storage")


class Watch:
    """Tells other servers, and hears them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._database = core.database
        #: What others have to be told.
        self._news: set[int] = set()
        self._teller: asyncio.Task[None] | None = None
        #: By queue, until when it is watched, and how it was when it was last polled.
        self._watched: dict[int, float] = {}
        self._seen: dict[int, tuple[object, ...]] = {}
        self._poller: asyncio.Task[None] | None = None
        #: Set when a queue is watched that was not.
        self._anew = asyncio.Event()
        self._closed = False

    async def start(self) -> None:
        """Begin to hear and to poll."""
        await self._database.watch(self.heard)
        self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        """Tell what is left to tell, and hear no more."""
        self._closed = True
        if self._teller is not None:
            await asyncio.wait([self._teller], timeout=_PARTING_S)
        await end(self._teller, self._poller)

    # -- telling -----------------------------------------------------------------------

    def spread(self, queues: set[int]) -> None:
        """Tell other servers soon of these queues, as in ``Database.watch``."""
        if self._closed or not self._database.has_company:
            return
        self._news |= queues
        if self._teller is None:
            self._teller = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        """Tell at once, and then, all together, what came meanwhile."""
        try:
            while self._news:
                queues, self._news = sorted(self._news), set()
                try:
                    await self._database.tell(queues)
                except Exception as error:  # noqa: BLE001  (whatever it is, they poll)
                    _log.warning("other servers could not be told: %s", error)
                if not self._closed:
                    await asyncio.sleep(_GATHER_S)
        finally:
            self._teller = None

    # -- hearing -----------------------------------------------------------------------

    def heard(self, queues: Sequence[int]) -> None:
        """Other servers say that these queues are ready, or acked; none: any may be."""
        if not queues:
            # The connection is another one, and so may be the machine at its other end.
            self._core.forget()
            if isinstance(self._core.clock, DatabaseClock):
                self._core.clock.doubt()
        for queue in queues:
            if queue < 0:
                self._acked(-queue)
            else:
                self._ready(queue)
        if not queues:
            for queue in tuple(self._watched):
                self._changed(queue)

    def _ready(self, queue: int) -> None:
        """Looking at the queue may be worth it; one that was never named here is left alone."""
        named = self._core.catalog.name_of(queue)
        if named is None or self._closed:
            return
        tenant, name = named
        self._core.listener.ready(tenant, name)
        self._core.listener.ready(tenant, name + DLQ_SUFFIX)

    def _acked(self, queue: int) -> None:
        """There may be results in the queue."""
        named = self._core.catalog.name_of(queue)
        if named is None or self._closed:
            return
        tenant, name = named
        self._core.listener.acked(tenant, name)
        self._core.listener.acked(tenant, name + DLQ_SUFFIX)

    def _changed(self, queue: int) -> None:
        """Something may have happened in the queue."""
        self._ready(queue)
        self._acked(queue)

    # -- polling -----------------------------------------------------------------------

    async def interested_in(self, tenant: str, queue: str) -> None:
        """Somebody found nothing there and may be about to wait."""
        known = await self._core.catalog.tenant(tenant)
        found = known.queues.get(queue.removesuffix(DLQ_SUFFIX))
        if found is not None:
            self.interested(found.number)

    def interested(self, queue: int) -> None:
        """Watch the queue for as long as a wait can last."""
        if queue not in self._watched:
            self._anew.set()
        self._watched[queue] = asyncio.get_running_loop().time() + _INTEREST_S

    async def _poll(self) -> None:
        """Look again and again, as long as somebody is interested."""
        loop = asyncio.get_running_loop()
        pause = least = _SOON_S
        failing = False
        while True:
            if not self._watched:
                await self._anew.wait()
                pause = _SOON_S
            pause = await self._rest(pause, least)
            asked = loop.time()
            try:
                changed = await self._look(asked)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is tried again)
                if not failing:
                    _log.warning("queues cannot be watched: %s", error)
                failing, pause = True, _FAILED_S
                continue
            failing = False
            least = max(_SOON_S, _REST * (loop.time() - asked))
            pause = _SOON_S if changed else min(_GROWTH * pause, _LATE_S)

    async def _rest(self, pause: float, least: float) -> float:
        """Wait until the next poll; returns for how long, if nothing else was new."""
        if self._database.hears:
            # Whatever happens is told: nobody waits for the poll.
            await asyncio.sleep(max(_NET_S, least))
        else:
            await asyncio.sleep(least)
            try:
                async with asyncio.timeout(pause - least):
                    await self._anew.wait()
                pause = _SOON_S
            except TimeoutError:
                pass
        self._anew.clear()
        return pause

    async def _look(self, now: float) -> bool:
        """Poll once; whether anything has changed.

        Of a queue that was not watched before nobody knows what it was like when somebody found
        nothing there, so its first answer is a change.
        """
        for queue in [queue for queue, until in self._watched.items() if until < now]:
            del self._watched[queue]
            self._seen.pop(queue, None)
        asked = sorted(self._watched)
        if not asked:
            return False
        async with self._database.reading() as session:
            rows = await session.fetch("poll", queues=asked)
        found = {row[0]: tuple(row[1:]) for row in rows}
        changed = [queue for queue in asked if self._seen.get(queue) != found.get(queue, ())]
        for queue in changed:
            self._seen[queue] = found.get(queue, ())
            self._changed(queue)
        return bool(changed)
