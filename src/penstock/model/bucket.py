"""The token bucket of a throughput limit, as a plain value.

It holds at most one second's worth of tokens. Tokens are counted in thousandths, so that
milliseconds divide evenly.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["Bucket"]

#: A clock that is further behind than this was set back, and is not just another server's.
_SKEW_MS: Final = 1_000


class Bucket(Struct, frozen=True, gc=False):
    """The tokens left at a point in time."""

    rate: int
    """Tokens per second."""
    milli_tokens: int
    filled_at: int

    @classmethod
    def full(cls, rate: int, now: int) -> Bucket:
        """A full bucket."""
        return cls(rate, rate * 1000, now)

    def refilled(self, now: int) -> Bucket:
        """The bucket at ``now``.

        Several clocks may say ``now``: time that was counted once is not counted again. A clock
        that was set back delays refilling by at most one second.
        """
        elapsed = now - self.filled_at
        if elapsed < 0:
            return Bucket(self.rate, self.milli_tokens, now) if self.is_ahead(now) else self
        milli_tokens = min(self.rate * 1000, self.milli_tokens + elapsed * self.rate)
        return Bucket(self.rate, milli_tokens, now)

    def is_ahead(self, now: int) -> bool:
        """Whether the bucket was filled too far in the future for clocks that merely differ."""
        return self.filled_at - now > _SKEW_MS

    @property
    def tokens(self) -> int:
        """How many deliveries it allows."""
        return self.milli_tokens // 1000

    @property
    def is_full(self) -> bool:
        """Whether the bucket is full."""
        return self.milli_tokens >= self.rate * 1000

    def charged(self, count: int) -> Bucket:
        """The bucket after taking ``count`` tokens; a negative count returns them."""
        milli_tokens = min(self.rate * 1000, self.milli_tokens - count * 1000)
        return Bucket(self.rate, milli_tokens, self.filled_at)

    def next_at(self) -> int:
        """When the next token arrives; that may be in the past."""
        missing = max(0, 1000 - self.milli_tokens)
        return self.filled_at + -(-missing // self.rate)
