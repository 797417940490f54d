"""An app: handlers for queues, and the process that runs them.

::

    app = penstock.App("http://localhost:8080")


    @app.worker("billing", concurrency=8)
    async def charge(order: Order) -> Receipt: ...


    app.main()

Nothing is opened or connected before ``run``, so an app may be defined in a module and tested
without a server (``penstock.testing.inline``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.api import QueueApi
from penstock.errors import BadInput
from penstock.model.clock import Clock, SystemClock
from penstock.model.limits import check_name, shown
from penstock.telemetry import configure_logging
from penstock.worker.middleware import Observe
from penstock.worker.registration import prepare
from penstock.worker.registry import Registry
from penstock.worker.running import Running
from penstock.worker.source import opened

if TYPE_CHECKING:
    from penstock.client import ClientOptions
    from penstock.client.credentials import CredentialSource
    from penstock.client.transport import MakeTransport

__all__ = ["App"]

#: How long running handlers may take to finish when the app stops. Kubernetes kills a pod after
#: 30 s by default; there, set it a little below the pod's grace period.
DEFAULT_GRACE_S: Final = 30.0
MAX_GRACE_S: Final = 24 * 3600

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("penstock.worker")


class App(Registry):
    """Handlers, tasks, middleware, and the source of the messages."""

    def __init__(
        self,
        where: str | QueueApi | None = None,
        *,
        credential: CredentialSource | None = None,
        ca: str | ssl.SSLContext | None = None,
        cert: str | None = None,
        key: str | None = None,
        options: ClientOptions | None = None,
        transport: MakeTransport | None = None,
        consumer: str | None = None,
        grace_s: float = DEFAULT_GRACE_S,
        observe: Observe | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``where`` is a server's or a store's URL, or an object that has the verbs.

        Without it, ``penstock work`` takes the URL and the credential from its options and
        settings. ``credential``, ``ca``, ``cert``, ``key``, ``options`` and ``transport`` are those
        of ``penstock.connect``.

        ``consumer`` is the name of its claims; without one, each queue gets a new name. Two
        processes must not share a name on an ordered queue. ``observe`` is called after every
        handling, for metrics. ``clock`` decides when periodic tasks fire.
        """
        super().__init__(observe)
        if consumer is not None:
            check_name(consumer, "consumer")
        if type(grace_s) not in (int, float) or not 0 <= grace_s <= MAX_GRACE_S:
            raise BadInput(
                f"grace_s is {shown(grace_s)}; it must be a number from 0 to {MAX_GRACE_S}.",
                field="grace_s",
                limit=MAX_GRACE_S,
            )
        self._where = where
        self._credential = credential
        self._tls: dict[str, Any] = {"ca": ca, "cert": cert, "key": key}
        self._options = options
        self._transport = transport
        self._consumer = consumer
        self._grace_s = grace_s
        self._clock = SystemClock() if clock is None else clock
        self._verbs: QueueApi | None = None
        self._running: Running | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- connecting --------------------------------------------------------------------

    @property
    def where(self) -> str | QueueApi | None:
        """The source of the messages."""
        return self._where

    @property
    def consumer(self) -> str | None:
        """The name of its claims."""
        return self._consumer

    @property
    def verbs(self) -> QueueApi:
        """The verbs, while the app runs or is connected."""
        if self._verbs is not None:
            return self._verbs
        if self._where is None or isinstance(self._where, str):
            raise BadInput(
                "The app is not connected; send tasks inside `async with app.connected():`.",
                field="app",
            )
        return self._where

    def configure(
        self,
        *,
        where: str | None = None,
        credential: CredentialSource | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        consumer: str | None = None,
    ) -> None:
        """Replace what was given to the constructor, before the app is connected or runs."""
        if self._verbs is not None:
            raise BadInput("The app is connected already.", field="app")
        self._where = self._where if where is None else where
        self._credential = self._credential if credential is None else credential
        self._tls["ca"] = self._tls["ca"] if ca is None else ca
        if cert is not None:
            self._tls |= {"cert": cert, "key": key}
        self._consumer = self._consumer if consumer is None else check_name(consumer, "consumer")

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[QueueApi]:
        """Connect, so that the program can send tasks without running any.

        Use it once, around the program or in the lifespan of a web application.
        """
        if self._verbs is not None:
            yield self._verbs
            return
        if self._where is None:
            raise BadInput(
                "The app has no server or store: give App a URL, or penstock work --url.",
                field="where",
            )
        async with opened(
            self._where,
            self._credential,
            options=self._options,
            transport=self._transport,
            **self._tls,
        ) as verbs:
            self.bind(verbs)
            try:
                yield verbs
            finally:
                self.bind(None)

    def bind(self, verbs: QueueApi | None) -> None:
        """Send tasks through these verbs; None disconnects. For tests and other runners."""
        self._verbs = verbs

    # -- running -----------------------------------------------------------------------

    async def prepare(self, verbs: QueueApi) -> None:
        """Create missing queues, as ``run`` does first.

        Call it before publishing if no worker runs yet, so that no message is missed.
        """
        for registration in self.registrations:
            await prepare(verbs, registration)

    async def run(self) -> None:
        """Work until ``stop``. Raises errors that no retry fixes: an unknown queue, no access."""
        if not self.registrations:
            raise BadInput("The app has no worker and no task.", field="app")
        if self._running is not None:
            raise BadInput("The app runs already.", field="app")
        async with self.connected() as verbs:
            self._loop = asyncio.get_running_loop()
            self._running = Running(
                verbs,
                self.registrations,
                self.layers,
                consumer=self._consumer,
                grace_s=self._grace_s,
                periodics=self.periodics,
                clock=self._clock,
            )
            try:
                await self.prepare(verbs)
                await self._running.run()
            finally:
                self._running = None
                self._loop = None

    def stop(self, *, immediately: bool = False) -> None:
        """End ``run``, from any thread: gracefully, or without a grace period."""
        running, loop = self._running, self._loop
        if running is not None and loop is not None:
            loop.call_soon_threadsafe(lambda: running.stop(immediately=immediately))

    def main(self) -> None:
        """Run as a process until SIGTERM or SIGINT; a second signal ends it immediately."""
        if not logging.getLogger().handlers:
            configure_logging()
        asyncio.run(self._run_until_signal())

    async def _run_until_signal(self) -> None:
        loop = asyncio.get_running_loop()
        work = asyncio.create_task(self.run())
        heard = 0

        def hear(number: signal.Signals) -> None:
            nonlocal heard
            heard += 1
            _log.info("%s: stopping%s", number.name, " immediately" if heard > 1 else "")
            if self._running is None:
                # Nothing has been claimed yet.
                work.cancel()
            else:
                self._running.stop(immediately=heard > 1)

        for number in _SIGNALS:
            loop.add_signal_handler(number, hear, number)
        try:
            await work
        except asyncio.CancelledError:
            if not heard:
                raise
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
