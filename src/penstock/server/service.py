"""What all requests share: the broker, who may come in, and the bounds.

Every bound refuses with ``Busy`` and a Retry-After instead of queueing: a caller that is told
at once can go elsewhere, and the server's memory has a ceiling.
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
from penstock.server.metrics import Metrics
from penstock.server.places import Places
from penstock.server.reading import Bodies
from penstock.server.streams import Streams
from penstock.storage.patience import Patience

__all__ = ["Service", "ServiceLimits"]

#: How long a commit counts as proof that the store can commit.
_READY_MS: Final = 1_000
#: Calls of all tenants that read through a log or a queue; each holds a page in memory.
_SCANS: Final = 1_000


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """The bounds of one server process."""

    body_bytes: int = 64 * 1024 * 1024
    """One request's body: sixty-four payloads of the largest default size."""
    memory_bytes: int = 512 * 1024 * 1024
    """Requests, what is decoded of them, and replies, of all calls together."""
    body_timeout_s: float = 30.0
    """A body that takes longer to arrive is a caller that holds memory for nothing."""
    reply_timeout_s: float = 30.0
    """A caller that takes nothing of its reply for so long is cut."""
    waits: int = 10_000
    """Claims, results and streams that wait at the same time."""
    tenant_waits: int = 10_000
    """Of one tenant."""
    tenant_scans: int = 8
    """Calls of one tenant that read through a log or a queue at the same time."""


class Service:
    """One broker behind one door."""

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
        """What a web page may not do; None checks nothing."""
        self.limits = ServiceLimits() if limits is None else limits
        self.payload_bytes = broker.options.engine.limits.payload_bytes
        self.bodies = Bodies(
            body_bytes=self.limits.body_bytes,
            timeout_s=self.limits.body_timeout_s,
        )
        self.budget = Budget(self.limits.memory_bytes)
        metrics.watch_budget(self.budget)
        self.patience = Patience(self.limits.reply_timeout_s)
        """With callers that are slow to read."""
        self.streams = Streams()
        self.stopping = asyncio.Event()
        """Set once: whoever waits for something that may take long is sent home."""
        numbers = count(1)
        self.next_request_id: Callable[[], str] = lambda: f"{request_prefix}{next(numbers):x}"
        self._waits = Places(
            "are waiting", self.limits.waits, self.limits.tenant_waits, field="wait_ms"
        )
        self.scans = Places(
            "are reading through a log or a queue", _SCANS, self.limits.tenant_scans, field=None
        )
        """Previews, dry runs and the like: as much work as there are messages."""
        self._probing = asyncio.Lock()
        self._ready_at = -_READY_MS
        self.description = b"{}"
        """The OpenAPI document."""

    def now(self) -> int:
        """The time, by the clock that the store goes by."""
        return self._clock.now()

    @property
    def waits(self) -> int:
        """How many calls are waiting."""
        return self._waits.taken

    async def check_ready(self) -> None:
        """Commit something real, at most once a second however often it is asked.

        Raises what the store raises when it cannot.
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
        """Take a place among those that may wait, or raise ``Busy``."""
        self.check_running()
        self._waits.take(tenant)
        self.metrics.waits(self._waits.taken)

    def end_wait(self, tenant: str) -> None:
        """Give the place back."""
        self._waits.give_back(tenant)
        self.metrics.waits(self._waits.taken)

    def check_running(self) -> None:
        """Raise ``Busy`` if the server is stopping."""
        if self.stopping.is_set():
            raise Busy("The server is stopping.")
