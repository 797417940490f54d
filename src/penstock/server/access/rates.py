"""Request rates: one token bucket per credential, in the memory of this server.

A bucket holds one second's worth of requests. Several servers on one store count separately.
Credentials without a limit cost one comparison per call.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import TooManyRequests
from penstock.model.bucket import Bucket
from penstock.model.clock import Clock
from penstock.server.access.credential import Credential

__all__ = ["MAX_BUCKETS", "Rates"]

#: Buckets of credentials in use; the oldest is dropped, and begins full if it is needed again.
MAX_BUCKETS: Final = 16_384


class Rates:
    """The buckets of the credentials that have a limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def take(self, credential: Credential) -> None:
        """Count one request; raise ``TooManyRequests`` if the credential is over its limit."""
        rate = credential.requests_per_s
        if rate is None:
            return
        now = self._clock.now()
        key = (credential.tenant, credential.counted_as)
        bucket = self._buckets.pop(key, None)
        # A key that was created again, or a new default, begins with a new bucket.
        bucket = (
            Bucket.full(rate, now)
            if bucket is None or bucket.rate != rate
            else bucket.refilled(now)
        )
        allowed = bucket.tokens >= 1
        if len(self._buckets) >= MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = bucket.charged(1) if allowed else bucket
        if not allowed:
            raise TooManyRequests(
                f"The credential {credential.name!r} makes more than {rate} requests per second.",
                field="requests_per_s",
                limit=rate,
                retry_after_ms=max(1, bucket.next_at() - now),
            )
