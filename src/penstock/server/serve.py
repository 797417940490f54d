"""The server process: a store, its keepers and the application on a socket.

Shutdown is graceful: the server accepts nothing new, ends waiting calls, answers the calls in
progress, makes the last commit and closes the store. HTTP, the application and the store share
one event loop (``server.http``): a request never changes threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from time import perf_counter
from typing import Final

from penstock.broker import Broker, BrokerOptions
from penstock.errors import BadSetting
from penstock.opening import open as open_store
from penstock.server.access import (
    Browsers,
    Tls,
    binding_warnings,
    check_binding,
    check_tls,
    open_access,
    tls_context,
)
from penstock.server.app import Application
from penstock.server.console import ROUTES as CONSOLE
from penstock.server.doors import Opener, load_doors
from penstock.server.doors.door import Door
from penstock.server.health import ROUTES as HEALTH
from penstock.server.http import HttpOptions, HttpServer
from penstock.server.memory import keep_freed_memory, uncollected
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES as NATIVE
from penstock.server.service import Service, ServiceLimits
from penstock.settings import Settings
from penstock.storage.contract import EngineOptions

__all__ = ["Serving", "serve"]

log = logging.getLogger("penstock.server")

#: The largest request head: twice what the longest names and all options together need.
_MAX_HEAD_BYTES: Final = 256 * 1024


class Serving:
    """A running server: its URL, and how to stop it."""

    def __init__(self, url: str, broker: Broker, service: Service, server: HttpServer) -> None:
        self.url = url
        self.broker = broker
        self._service = service
        self._server = server

    def stop(self) -> None:
        """Begin to stop; calling it again has no effect."""
        if not self._service.stopping.is_set():
            log.info("Stopping.")
            self._service.stopping.set()
            self._server.stop()

    async def stopped(self, grace_s: float) -> bool:
        """Wait until the server is stopped; returns whether its calls ended within the grace."""
        await self._service.stopping.wait()
        try:
            async with asyncio.timeout(grace_s):
                await self._server.ended()
        except TimeoutError:
            return False
        return True


async def serve(settings: Settings, announce: Callable[[Serving], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` is called once requests are answered."""
    check_binding(settings.host, auth=settings.auth, insecure=settings.insecure)
    tls = check_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    for warning in binding_warnings(
        settings.host, auth=settings.auth, insecure=settings.insecure, tls=tls is not None
    ):
        log.warning("%s", warning)
    browsers = _browsers(settings)
    openers = load_doors(settings.door)
    keep_freed_memory()
    with _bound(settings.host, settings.port) as listener:
        await _open_and_serve(settings, listener, tls, browsers, openers, announce)


async def _open_and_serve(
    settings: Settings,
    listener: socket.socket,
    tls: Tls | None,
    browsers: Browsers,
    openers: Iterable[Opener],
    announce: Callable[[Serving], None],
) -> None:
    metrics = Metrics()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if tls is None else "https"
    url = f"{scheme}://{host}:{listener.getsockname()[1]}"
    options = BrokerOptions(
        engine=EngineOptions(
            limits=settings.limits,
            auto_create=settings.auto_create,
            archive=settings.archive,
            default_policy=settings.queue_defaults,
            server_url=settings.advertised_url or url,
        ),
        require_topics=settings.require_topics,
        routing=settings.routing,
        webhooks=settings.webhooks,
        listener=metrics,
    )
    opening = perf_counter()
    async with open_store(settings.store, options=options) as broker:
        access = open_access(settings, broker.engine, broker.engine.clock)
        metrics.watch(broker.engine, lambda: broker.keepers, opened_s=perf_counter() - opening)
        service = Service(broker, access, metrics, limits=_limits(settings), browsers=browsers)
        doors = tuple(opener(service, settings) for opener in openers)
        console = CONSOLE if settings.console else ()
        application = Application(service, (*NATIVE, *HEALTH, *console), doors)
        server = HttpServer(
            application,
            listener,
            broker.engine.clock,
            HttpOptions(
                connections=_connections(settings.max_connections),
                head_bytes=_MAX_HEAD_BYTES,
                head_timeout_s=settings.header_timeout_s,
                reply_timeout_s=settings.reply_timeout_s,
            ),
            None if tls is None else tls_context(tls),
        )
        serving = Serving(url, broker, service, server)
        service.live.start()
        try:
            with uncollected():
                async with _started(doors):
                    await _serve(server, serving, settings, announce)
        finally:
            await service.live.close()


@asynccontextmanager
async def _started(doors: Iterable[Door]) -> AsyncIterator[None]:
    """Start the doors, and stop them in the end, however that comes."""
    async with AsyncExitStack() as stack:
        for door in doors:
            stack.push_async_callback(door.stop)
            await door.start()
        yield


async def _serve(
    server: HttpServer,
    serving: Serving,
    settings: Settings,
    announce: Callable[[Serving], None],
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.stop)
    try:
        try:
            server.start()
        except OSError as error:
            raise _cannot_listen(settings.host, settings.port, error) from error
        announce(serving)
        if not await serving.stopped(settings.grace_s):
            log.warning("Calls were still in progress after %g s.", settings.grace_s)
    finally:
        # The signal handlers stay until the loop is closed: a second signal must not end the
        # process while it closes the store.
        await server.abort()


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket for the address, or ``BadSetting`` if another process has it.

    It does not listen before the store is open. SO_REUSEADDR lets a server restart while old
    connections linger. Until one listens, it also lets other servers bind the same port, so it
    is set only while this one binds and begins to listen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        yield listener


def _cannot_listen(host: str, port: int, error: OSError) -> BadSetting:
    reason = (
        "something else listens there"
        if error.errno == errno.EADDRINUSE
        else error.strerror or str(error)
    )
    return BadSetting(f"Cannot listen on {host}:{port}: {reason}.", field="port", limit=port)


def _connections(wanted: int) -> int:
    """The number of connections: as wanted, but at most half of the limit of open files.

    The other half is for the store, which fails permanently if it cannot open the next file of
    its log. Opening connections until there are no descriptors left takes no credential.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY or wanted <= soft // 2:
        return wanted
    log.warning(
        "At most %d connections, not %d: the process may open %d files (ulimit -n).",
        soft // 2,
        wanted,
        soft,
    )
    return soft // 2


def _browsers(settings: Settings) -> Browsers:
    return Browsers.of(
        auth=settings.auth,
        listening=(settings.host, socket.gethostname()),
        allowed_hosts=settings.allowed_hosts,
        allowed_origins=settings.allowed_origins,
    )


def _limits(settings: Settings) -> ServiceLimits:
    return ServiceLimits(
        body_bytes=settings.max_body_bytes,
        memory_bytes=settings.memory_budget_bytes,
        body_timeout_s=settings.body_timeout_s,
        reply_timeout_s=settings.reply_timeout_s,
        waits=settings.max_waits,
        tenant_waits=settings.max_tenant_waits,
        tenant_scans=settings.max_tenant_scans,
    )
