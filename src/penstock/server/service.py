"""State that all requests share: the broker, access control and limits.

Over a limit a call is refused with ``Busy`` and a Retry-After instead of being queued: the
caller can go elsewhere immediately, and the server's memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from msgspec import Struct

from penstock.broker import Broker
from penstock.errors import Busy
from penstock.server.access import Access, Browsers
from penstock.server.budget import Budget
from penstock.server.call_slots import CallSlots
from penstock.server.interruption import StopSignal
from penstock.server.live import LiveStats
from penstock.server.metrics import Metrics
from penstock.server.request_parsing import Bodies
from penstock.server.streams import Streams
from penstock.storage.timeouts import Timeouts

__all__ = ["Service", "ServiceLimits"]

#: How long a commit counts as evidence that the store can commit.
_READY_MS: Final = 1_000
#: Concurrent scans of a log or a queue, of all tenants; each holds a page in memory.
_SCANS: Final = 1_000


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """The limits of one server process."""

    body_bytes: int = 64 * 1024 * 1024
    """Per request: 64 payloads of the largest default size."""
    memory_bytes: int = 512 * 1024 * 1024
    """Requests, their decoded form, and replies, of all calls together."""
    body_timeout_s: float = 30.0
    """A caller that takes longer to send a body holds memory for nothing."""
    reply_timeout_s: float = 30.0
    """A caller that reads nothing of its reply for this long is disconnected."""
    waits: int = 10_000
    """Claims, results and streams that wait at the same time."""
    tenant_waits: int = 10_000
    """The same, per tenant."""
    tenant_scans: int = 8
    """Concurrent scans of a log or a queue per tenant."""


class Service:
    """One broker and everything that serves it over HTTP."""

    def __init__(
        self,
        broker: Broker,
        access: Access,
        metrics: Metrics,
        *,
        limits: ServiceLimits | None = None,
        browsers: Browsers | None = None,
        request_prefix: str = "",
    ) -> None:
        self.broker = broker
        self._clock = broker.engine.clock
        self.access = access
        self.metrics = metrics
        self.browsers = browsers
        """Checks on requests from web pages; None disables them."""
        self.limits = ServiceLimits() if limits is None else limits
        self.payload_bytes = broker.options.engine.limits.payload_bytes
        self.bodies = Bodies(
            body_bytes=self.limits.body_bytes,
            timeout_s=self.limits.body_timeout_s,
        )
        self.budget = Budget(self.limits.memory_bytes)
        metrics.watch_budget(self.budget)
        self.timeouts = Timeouts(self.limits.reply_timeout_s)
        """The timeout for callers that are slow to read."""
        self.streams = Streams()
        self.live = LiveStats(broker.engine)
        metrics.report_changes(self.live.changed)
        self.stopping = StopSignal()
        """Set once, when the server stops: calls that wait for long then end."""
        numbers = count(1)
        self.next_request_id: Callable[[], str] = lambda: f"{request_prefix}{next(numbers):x}"
        self._waits = CallSlots(
            "are waiting", self.limits.waits, self.limits.tenant_waits, field="wait_ms"
        )
        self.scans = CallSlots(
            "are reading through a log or a queue", _SCANS, self.limits.tenant_scans, field=None
        )
        """Previews, dry runs and other calls whose work grows with the number of messages."""
        self._probing = asyncio.Lock()
        self._ready_at = -_READY_MS
        self.describe: Callable[[], bytes] = lambda: b"{}"
        """Returns the OpenAPI document, as JSON."""

    def now(self) -> int:
        """The time of the store's clock."""
        return self._clock.now()

    @property
    def waits(self) -> int:
        """How many calls are waiting."""
        return self._waits.taken

    async def check_ready(self) -> None:
        """Make a real commit, at most once per second however often this is called.

        Raises the store's error if it cannot commit.
        """
        self.check_running()
        async with self._probing:
            now = self.now()
            if not 0 <= now - self._ready_at < _READY_MS:
                await self.broker.engine.put_document("probe", "ready", b"%d" % now)
                self._ready_at = now

    def check_waits(self, tenant: str) -> None:
        """Raise ``Busy`` if no more calls of the tenant may wait."""
        self.check_running()
        self._waits.check(tenant)

    def begin_wait(self, tenant: str) -> None:
        """Take a place for a waiting call, or raise ``Busy``."""
        self.check_running()
        self._waits.take(tenant)
        self.metrics.waits(self._waits.taken)

    def end_wait(self, tenant: str) -> None:
        """Return the place."""
        self._waits.give_back(tenant)
        self.metrics.waits(self._waits.taken)

    def check_running(self) -> None:
        """Raise ``Busy`` if the server is stopping."""
        if self.stopping.is_set():
            raise Busy("The server is stopping.")
