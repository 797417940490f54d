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
from penstock.server.metrics import Metrics
from penstock.server.reading import Bodies
from penstock.server.streams import Streams

__all__ = ["Service", "ServiceLimits"]

#: How long a commit counts as proof that the store can commit.
_READY_MS: Final = 1_000


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """The bounds of one server process."""

    body_bytes: int = 64 * 1024 * 1024
    """One request's body: sixty-four payloads of the largest default size."""
    total_body_bytes: int = 512 * 1024 * 1024
    """Bodies that are arriving at the same time, together."""
    body_timeout_s: float = 30.0
    """A body that takes longer to arrive is a caller that holds memory for nothing."""
    waits: int = 10_000
    """Claims, results and streams that wait at the same time."""


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
            total_bytes=self.limits.total_body_bytes,
            timeout_s=self.limits.body_timeout_s,
        )
        self.streams = Streams()
        self.stopping = asyncio.Event()
        """Set once: whoever waits for something that may take long is sent home."""
        numbers = count(1)
        self.next_request_id: Callable[[], str] = lambda: f"{request_prefix}{next(numbers):x}"
        self._waits = 0
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
        return self._waits

    async def check_ready(self) -> None:
        """Commit something real, at most once a second however often it is asked.

        Raises what the store raises when it cannot.
        """
        if self.stopping.is_set():
            raise Busy("The server is stopping.")
        async with self._probing:
            now = self.now()
            if not 0 <= now - self._ready_at < _READY_MS:
                await self.broker.engine.put_document("probe", "ready", b"%d" % now)
                self._ready_at = now

    def check_waits(self) -> None:
        """Raise ``Busy`` if no more calls may wait."""
        if self.stopping.is_set():
            raise Busy("The server is stopping.")
        if self._waits >= self.limits.waits:
            raise Busy(
                f"{self._waits} calls are waiting already.", field="wait_ms", limit=self._waits
            )

    def begin_wait(self) -> None:
        """Take a place among those that may wait, or raise ``Busy``."""
        self.check_waits()
        self._waits += 1
        self.metrics.waits(self._waits)

    def end_wait(self) -> None:
        """Give the place back."""
        self._waits -= 1
        self.metrics.waits(self._waits)
