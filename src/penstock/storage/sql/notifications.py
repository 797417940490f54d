"""Notifications: how a server learns of changes in the queues that its callers wait for (C5).

If the database can notify, it broadcasts which queues a commit made ready: after the transaction,
and batched over a few milliseconds. In addition, all queues with waiters are polled in one
statement. With notifications, this poll runs once a second and catches lost ones. Without them it
is the only source: it runs often while queues change and less and less often while they do not,
and never takes more than a small share of the time. Queues without waiters are not polled.

Notifications are hints: a duplicate, spurious or self-sent one costs a query, a lost one costs
latency.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from penstock.model.limits import DLQ_SUFFIX, MAX_WAIT_MS
from penstock.storage.sql.clock import DatabaseClock
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import end

__all__ = ["Watch"]

#: Seconds that a queue is watched after a claim found nothing: longer than any wait.
_INTEREST_S: Final = MAX_WAIT_MS / 1000 + 5
#: Seconds for which notifications are batched after one was sent.
_GATHER_S: Final = 0.01
#: Seconds between two polls while the database sends notifications.
_NET_S: Final = 1.0
#: Seconds between two polls without notifications: after a change, the factor by which the
#: interval grows without changes, and its maximum.
_SOON_S: Final = 0.01
_GROWTH: Final = 1.5
_LATE_S: Final = 0.5
#: The pause after a poll, as a multiple of the duration of the poll.
_REST: Final = 5
#: Seconds after a failed poll.
_FAILED_S: Final = 1.0
#: Seconds that closing waits for the last notification to be sent.
_PARTING_S: Final = 1.0

_log = logging.getLogger("penstock.storage")


class Watch:
    """Notifies other servers, and receives their notifications."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._database = core.database
        #: Queues of the next notification.
        self._news: set[int] = set()
        self._sender: asyncio.Task[None] | None = None
        #: By queue, until when it is watched, and its state at the last poll.
        self._watched: dict[int, float] = {}
        self._seen: dict[int, tuple[object, ...]] = {}
        self._poller: asyncio.Task[None] | None = None
        #: Set when a queue starts to be watched.
        self._anew = asyncio.Event()
        self._closed = False

    async def start(self) -> None:
        """Start listening and polling."""
        await self._database.watch(self.heard)
        self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        """Send the pending notification, then stop listening and polling."""
        self._closed = True
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=_PARTING_S)
        await end(self._sender, self._poller)

    # -- notifying ---------------------------------------------------------------------

    def broadcast(self, queues: set[int]) -> None:
        """Notify other servers of these queues soon, as in ``Database.watch``."""
        if self._closed or not self._database.has_company:
            return
        self._news |= queues
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Notify immediately, then batch the queues that come meanwhile."""
        try:
            while self._news:
                queues, self._news = sorted(self._news), set()
                try:
                    await self._database.broadcast(queues)
                except Exception as error:  # noqa: BLE001  (the other servers poll)
                    _log.warning("other servers could not be notified: %s", error)
                if not self._closed:
                    await asyncio.sleep(_GATHER_S)
        finally:
            self._sender = None

    # -- listening ---------------------------------------------------------------------

    def heard(self, queues: Sequence[int]) -> None:
        """Handle a notification: queues are ready, or deliveries ended; empty if any may be."""
        if not queues:
            # The connection is new, and the server behind it may have failed over.
            self._core.forget()
            if isinstance(self._core.clock, DatabaseClock):
                self._core.clock.doubt()
        for queue in queues:
            if queue < 0:
                self._ended(-queue)
            else:
                self._ready(queue)
        if not queues:
            for queue in tuple(self._watched):
                self._changed(queue)

    def _ready(self, queue: int) -> None:
        """Notify waiters that the queue may be ready."""
        for tenant, name in self._names(queue):
            self._core.listener.ready(tenant, name)

    def _ended(self, queue: int) -> None:
        """Notify waiters that the queue may have results."""
        for tenant, name in self._names(queue)[:1]:
            self._core.listener.ended(tenant, name)

    def _names(self, queue: int) -> Sequence[tuple[str, str]]:
        """The queue and its dead letters; nothing if this server does not know the queue."""
        named = self._core.catalog.name_of(queue)
        if named is None or self._closed:
            return ()
        tenant, name = named
        return (tenant, name), (tenant, name + DLQ_SUFFIX)

    def _changed(self, queue: int) -> None:
        """Notify all waiters of the queue."""
        self._ready(queue)
        self._ended(queue)

    # -- polling -----------------------------------------------------------------------

    async def interested_in(self, tenant: str, queue: str) -> None:
        """Watch the queue for a caller that found nothing there and may wait."""
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
        """Poll repeatedly while queues are watched."""
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
            except Exception as error:  # noqa: BLE001  (logged, and retried)
                if not failing:
                    _log.warning("queues cannot be polled: %s", error)
                failing, pause = True, _FAILED_S
                continue
            failing = False
            least = max(_SOON_S, _REST * (loop.time() - asked))
            pause = _SOON_S if changed else min(_GROWTH * pause, _LATE_S)

    async def _rest(self, pause: float, least: float) -> float:
        """Wait until the next poll; returns the interval, reset if a queue is newly watched."""
        if self._database.hears:
            # Notifications report every change: no waiter depends on the poll.
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
        """Poll once; returns whether anything has changed.

        The first answer for a newly watched queue counts as a change: its state at the time of
        the unsuccessful claim is not known.
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
