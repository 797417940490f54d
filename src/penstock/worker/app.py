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

from penstock.api import QueueApi
from penstock.errors import BadInput
from penstock.model.limits import check_name, shown
from penstock.model.queue import Start
from penstock.telemetry import configure_logging
from penstock.worker.handler import Function, Handler
from penstock.worker.middleware import Middleware, Observe, timing, tracing
from penstock.worker.registration import Registration, check_registration, prepare
from penstock.worker.running import Running
from penstock.worker.source import opened

__all__ = ["App"]

F = TypeVar("F", bound=Function)
M = TypeVar("M", bound=Middleware)

DEFAULT_CONCURRENCY: Final = 8
#: How long running handlers may take to finish when the app stops. Kubernetes kills a pod after
#: 30 s by default; there, set it a little below the pod's grace period.
DEFAULT_GRACE_S: Final = 30.0
MAX_GRACE_S: Final = 24 * 3600

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("penstock.worker")


class App:
    """Handlers, middleware, and the source of the messages."""

    def __init__(
        self,
        where: str | QueueApi,
        *,
        credential: str | None = None,
        consumer: str | None = None,
        grace_s: float = DEFAULT_GRACE_S,
        observe: Observe | None = None,
    ) -> None:
        """``where`` is a server's or a store's URL, or an object that has the verbs.

        ``consumer`` is the name of its claims; without one, each queue gets a new name. Two
        processes must not share a name on an ordered queue. ``observe`` is called after every
        handling, for metrics.
        """
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
        self._consumer = consumer
        self._grace_s = grace_s
        self._registrations: dict[str, Registration] = {}
        self._middleware: list[Middleware] = [tracing, timing(observe)]
        self._running: Running | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """The registrations, in order."""
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

        ``max_in_flight`` bounds the deliveries that are handled or prefetched; it defaults to
        twice the concurrency. A handling that takes longer than ``timeout_ms`` is cancelled and
        nacked; a thread cannot be cancelled, so its delivery waits for its lease to lapse.
        ``retry_ms`` are the delays after the first, second … failed attempt, instead of the
        queue's backoff. ``reject_on`` are exceptions that fail the delivery immediately. With
        ``filter``, a missing queue is created, with ``start`` and the fields of ``policy``; an
        existing queue is not changed.
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
        """Register middleware around every handler, inside of those registered before."""
        self._middleware.append(layer)
        return layer

    # -- running -----------------------------------------------------------------------

    async def prepare(self, verbs: QueueApi) -> None:
        """Create missing queues, as ``run`` does first.

        Call it before publishing if no worker runs yet, so that no message is missed.
        """
        for registration in self.registrations:
            await prepare(verbs, registration)

    async def run(self) -> None:
        """Work until ``stop``. Raises errors that no retry fixes: an unknown queue, no access."""
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
