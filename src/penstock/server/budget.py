"""The memory budget: one limit for everything that callers can make the server hold.

A request's body counts from its first byte until its verb has answered, its decoded form while
it is in use, and a reply until the caller has read it. Over the budget a call is refused
with ``Busy``; a caller that reads nothing of its reply for too long is cut off (``replies``).
"""

from __future__ import annotations

from typing import Final

from penstock.errors import Busy

__all__ = ["Budget", "Hold"]

#: Replies are read, or cut off, within seconds.
_RETRY_AFTER_MS: Final = 1_000


class Budget:
    """The bytes that all calls hold together."""

    __slots__ = ("held", "limit", "refused")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.refused = 0
        """Calls that were refused."""

    def check(self, size: int = 0) -> None:
        """Raise ``Busy`` if ``size`` more bytes would exceed the limit."""
        if self.held + size > self.limit:
            self.refused += 1
            raise Busy(
                f"The server holds {self.held} bytes of requests and replies; the limit is"
                f" {self.limit}.",
                field="body",
                limit=self.limit,
                retry_after_ms=_RETRY_AFTER_MS,
            )


class Hold:
    """The part of the budget that one call holds."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def check(self) -> None:
        """Raise ``Busy`` if the budget is used up."""
        self._budget.check(1)

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes, or raise ``Busy``."""
        if self._budget.held + size > self._budget.limit:
            self._budget.check(size)
        self._budget.held += size
        self.size += size

    def add(self, size: int) -> None:
        """Hold ``size`` more bytes, even over the budget: they are allocated already."""
        self._budget.held += size
        self.size += size

    def set(self, size: int) -> None:
        """Hold exactly ``size`` bytes from now on."""
        self._budget.held += size - self.size
        self.size = size
