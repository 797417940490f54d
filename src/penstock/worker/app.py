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
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from penstock.errors import BadInput
from penstock.model.limits import check_name, shown
from penstock.model.queue import Start
from penstock.telemetry import configure_logging
from penstock.verbs import Verbs
from penstock.worker.handler import Function, Handler
from penstock.worker.middleware import Middleware, Observe, timing, tracing
from penstock.worker.registration import Registration, check_registration, prepare
from penstock.worker.running import Running
from penstock.worker.source import opened

__all__ = ["App"]

F = TypeVar("F", bound=Function)
M = TypeVar("M", bound=Middleware)

DEFAULT_CONCURRENCY: Final = 8
#: How long handlers that run are given when the app stops. Kubernetes kills after 30 s by
#: default; there, set it a little below what the pod is given.
DEFAULT_GRACE_S: Final = 30.0
MAX_GRACE_S: Final = 24 * 3600

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("penstock.worker")


class App:
    """Handlers, middleware, and where the messages are."""

    def __init__(
        self,
        where: str | Verbs,
        *,
        credential: str | None = None,
        consumer: str | None = None,
        grace_s: float = DEFAULT_GRACE_S,
        observe: Observe | None = None,
    ) -> None:
        """``where`` is a server's or a store's URL, or what has the verbs already.

        ``consumer`` is the name that its claims go by, a new one for each queue without; two
        processes may not share it on an ordered queue. ``observe`` is told how every handling
        went, for metrics.
        """
        if consumer is not None:
            check_name(consumer, "consumer")
        if type(grace_s) not in (int, float) or not 0 <= grace_s <= MAX_GRACE_S:
            raise BadInput(
                f"grace_s is {shown(grace_s)}; it is a number from 0 to {MAX_GRACE_S}.",
                field="grace_s",
                limit=MAX_GRACE_S,
            )
        self._where = where
        self._credential = credential
        self._consumer = consumer
        self._grace_s = grace_s
        self._registrations: dict[str, Registration] = {}
        self._middleware: list[Middleware] = [tracing, timing(observe)]
        self._running: Running | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """What was registered, in order."""
        return tuple(self._registrations.values())

    @property
    def layers(self) -> tuple[Middleware, ...]:
        """The middleware, the outermost first."""
        return tuple(self._middleware)

    def worker(
        self,
        queue: str,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        max_in_flight: int | None = None,
        lease_ms: int | None = None,
        timeout_ms: int | None = None,
        retry_ms: int | Sequence[int] = (),
        reject_on: type[Exception] | tuple[type[Exception], ...] = (),
        filter: str | None = None,
        start: str | Start = "latest",
        **policy: object,
    ) -> Callable[[F], F]:
        """Register a function that handles the deliveries of ``queue``.

        ``max_in_flight`` is what is handled and prefetched together, twice the concurrency
        unless given. A handling that takes longer than ``timeout_ms`` is cancelled and nacked; a
        thread cannot be cancelled, so its delivery is left to its lease. ``retry_ms`` are the
        delays after the first, second … failed attempt in place of the queue's backoff,
        ``reject_on`` exceptions that fail the delivery at once. With ``filter``, and ``start`` and
        fields of a queue's policy, a queue that is not there is created; one that is there stays
        as it is.
        """
        names = sys._getframe(1).f_locals  # noqa: SLF001  (annotations may name what is local there)

        def register(function: F) -> F:
            if queue in self._registrations:
                raise BadInput(f"There is a handler for {queue!r} already.", field="queue")
            in_flight = 2 * concurrency if max_in_flight is None else max_in_flight
            registration = Registration(
                queue=queue,
                handler=Handler(function, names),
                concurrency=concurrency,
                max_in_flight=in_flight,
                lease_ms=lease_ms,
                timeout_ms=timeout_ms,
                retry_ms=(retry_ms,) if isinstance(retry_ms, int) else tuple(retry_ms),
                reject_on=(reject_on,) if isinstance(reject_on, type) else reject_on,
                filter=filter,
                start=start,
                policy=policy,
            )
            self._registrations[queue] = check_registration(registration)
            return function

        return register

    def middleware(self, layer: M) -> M:
        """Register what goes on around every handler, inside of what is registered already."""
        self._middleware.append(layer)
        return layer

    # -- running -----------------------------------------------------------------------

    async def prepare(self, verbs: Verbs) -> None:
        """Make sure that every queue is there, as ``run`` does first.

        Whoever publishes before the first worker runs calls it, so that nothing is missed.
        """
        for registration in self.registrations:
            await prepare(verbs, registration)

    async def run(self) -> None:
        """Work until ``stop``. Raises what cannot pass: an unknown queue, no access."""
        if not self._registrations:
            raise BadInput("The app has no worker.", field="app")
        if self._running is not None:
            raise BadInput("The app runs already.", field="app")
        async with opened(self._where, self._credential) as verbs:
            self._loop = asyncio.get_running_loop()
            self._running = Running(
                verbs,
                self.registrations,
                self.layers,
                consumer=self._consumer,
                grace_s=self._grace_s,
            )
            try:
                await self.prepare(verbs)
                await self._running.run()
            finally:
                self._running = None
                self._loop = None

    def stop(self, *, at_once: bool = False) -> None:
        """End ``run``, from any thread: gracefully, or with no grace for what is under way."""
        running, loop = self._running, self._loop
        if running is not None and loop is not None:
            loop.call_soon_threadsafe(lambda: running.stop(at_once=at_once))

    def main(self) -> None:
        """Run as a process: until SIGTERM or SIGINT, gracefully; a second one ends it at once."""
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
            _log.info("%s: stopping%s", number.name, " at once" if heard > 1 else "")
            if self._running is None:
                # Nothing was claimed yet.
                work.cancel()
            else:
                self._running.stop(at_once=heard > 1)

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
