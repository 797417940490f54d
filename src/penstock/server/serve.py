"""The server process: a store, its keepers and the application on a socket.

Shutdown is graceful: the server accepts nothing new, ends waiting calls, answers the calls in
progress, makes the last commit and closes the store. Granian reads and writes HTTP on a thread
of its own, outside the GIL, and drops connections that send their headers too slowly; the
application runs on this thread's event loop, together with the store.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Final

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

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
)
from penstock.server.app import Application
from penstock.server.health import ROUTES as HEALTH
from penstock.server.memory import keep_freed_memory, uncollected
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES as NATIVE
from penstock.server.service import Service, ServiceLimits
from penstock.settings import Settings
from penstock.storage.contract import EngineOptions

__all__ = ["Serving", "serve"]

log = logging.getLogger("penstock.server")

#: How long the server may take until the socket listens.
_LISTEN_S: Final = 10.0
#: Connections that the kernel queues while the server is busy.
_BACKLOG: Final = 1024
#: The largest request head: twice what the longest names and all options together need.
_MAX_HEAD_BYTES: Final = 256 * 1024


class Serving:
    """A running server: its URL, and how to stop it."""

    def __init__(self, url: str, broker: Broker, service: Service, server: Server) -> None:
        self.url = url
        self.broker = broker
        self._service = service
        self._server = server

    def stop(self) -> None:
        """Begin to stop; calling it again has no effect."""
        if not self._service.stopping.is_set():
            log.info("Stopping.")
            self._service.stopping.set()
            self._server.stop()  # type: ignore[no-untyped-call]

    async def stopped(self, grace_s: float) -> None:
        """Wait until the server is stopped, and then for the grace period."""
        await self._service.stopping.wait()
        await asyncio.sleep(grace_s)


async def serve(settings: Settings, announce: Callable[[Serving], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` is called once requests are answered."""
    check_binding(settings.host, auth=settings.auth, insecure=settings.insecure)
    tls = check_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    for warning in binding_warnings(
        settings.host, auth=settings.auth, insecure=settings.insecure, tls=tls is not None
    ):
        log.warning("%s", warning)
    browsers = _browsers(settings)
    keep_freed_memory()
    with _reserved(settings.host, settings.port) as (address, port):
        await _open_and_serve(settings, address, port, tls, browsers, announce)


async def _open_and_serve(
    settings: Settings,
    address: str,
    port: int,
    tls: Tls | None,
    browsers: Browsers,
    announce: Callable[[Serving], None],
) -> None:
    metrics = Metrics()
    options = BrokerOptions(
        engine=EngineOptions(
            limits=settings.limits, auto_create=settings.auto_create, archive=settings.archive
        ),
        require_topics=settings.require_topics,
        routing=settings.routing,
        listener=metrics,
    )
    opening = perf_counter()
    async with open_store(settings.store, options=options) as broker:
        access = open_access(settings, broker.engine, broker.engine.clock)
        metrics.watch(broker.engine, lambda: broker.keepers, opened_s=perf_counter() - opening)
        service = Service(broker, access, metrics, limits=_limits(settings), browsers=browsers)
        application = Application(service, (*NATIVE, *HEALTH))
        server = Server(
            application,
            address=address,
            port=port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=_BACKLOG,
            backpressure=_connections(settings.max_connections),
            # No pipeline_flush: with it hyper accepts a whole reply however slowly it is read.
            http1_settings=HTTP1Settings(
                header_read_timeout=int(settings.header_timeout_s * 1000),
                max_buffer_size=_MAX_HEAD_BYTES,
            ),
            log_enabled=False,
            ssl_cert=None if tls is None else tls.cert,
            ssl_key=None if tls is None else tls.key,
            ssl_ca=None if tls is None else tls.client_ca,
            ssl_client_verify=tls is not None and tls.client_ca is not None,
        )
        scheme = "http" if tls is None else "https"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        serving = Serving(f"{scheme}://{host}:{port}", broker, service, server)
        with uncollected():
            await _serve(server, serving, settings, port, announce)


async def _serve(
    server: Server,
    serving: Serving,
    settings: Settings,
    port: int,
    announce: Callable[[Serving], None],
) -> None:
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(server.serve())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.stop)
    try:
        await _listening(running, settings.host, port)
        announce(serving)
        stopping = asyncio.ensure_future(serving.stopped(settings.grace_s))
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if not running.done():
            log.warning("Calls were still in progress after %g s.", settings.grace_s)
            running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def _listening(running: asyncio.Future[None], host: str, port: int) -> None:
    """Wait until the socket accepts connections, or the server has failed to start."""
    async with asyncio.timeout(_LISTEN_S):
        while not running.done():
            try:
                _, writer = await asyncio.open_connection(_reachable(host), port)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                return
    running.result()


def _reachable(host: str) -> str:
    """A local address at which a socket that is bound to every address can be reached."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (not a binding)


@contextmanager
def _reserved(host: str, port: int) -> Iterator[tuple[str, int]]:
    """Reserve an address and port, or raise ``BadSetting`` if another process has them.

    A host name is resolved to its address, and port 0 to a free port.

    Granian lets several sockets share a port (SO_REUSEPORT), so two servers that start at the
    same moment would both listen and each get half of the connections. This socket never
    listens: it is bound exclusively, which only one server can do, and shared only afterwards.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((host, port))
        except OSError as error:
            reason = (
                "something else listens there"
                if error.errno == errno.EADDRINUSE
                else error.strerror or str(error)
            )
            raise BadSetting(
                f"Cannot listen on {host}:{port}: {reason}.", field="port", limit=port
            ) from error
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        address, found = held.getsockname()[:2]
        yield address, found


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
