"""The memory budget: one limit for everything that callers can make the server hold.

A request's body counts from its first byte until its verb has answered, its decoded form while
it is in use, and a reply until the caller has read it. Over the budget a call is refused
with ``Busy``; a caller that reads nothing of its reply for too long is cut off (``replies``).

A tenant may hold up to four times the free part of the budget, or what one call needs. So one
tenant alone gets four fifths of the budget, and another tenant that comes later finds some free.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from penstock.errors import Busy

__all__ = ["Budget", "Hold"]

#: Replies are read, or cut off, within seconds.
_RETRY_AFTER_MS: Final = 1_000


#: How many times what is free one tenant may hold.
_OF_FREE: Final = 4


class Share(Struct):
    """The bytes that the calls of one tenant hold."""

    held: int = 0


class Budget:
    """The bytes that all calls hold together."""

    __slots__ = ("_shares", "held", "limit", "refused")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.refused = 0
        """Calls that were refused."""
        self._shares: dict[str, Share] = {}

    def share(self, tenant: str) -> Share:
        """The part that the tenant holds."""
        found = self._shares.get(tenant)
        if found is None:
            found = self._shares[tenant] = Share()
        return found

    def has_room(self, size: int, share: Share, own: int) -> bool:
        """Whether a call that holds ``own`` bytes of ``share`` may hold ``size`` more.

        If it is the tenant's only call, it may use everything that is free.
        """
        free = self.limit - self.held - size
        return free >= 0 and (share.held == own or share.held + size <= _OF_FREE * free)

    def refuse(self, share: Share) -> Busy:
        """The error for a call that exceeds the budget."""
        self.refused += 1
        return Busy(
            f"The server holds {self.held} bytes of requests and replies, {share.held} of them for"
            f" this tenant; the limit is {self.limit}.",
            field="body",
            limit=self.limit,
            retry_after_ms=_RETRY_AFTER_MS,
        )


class Hold(Struct):
    """The part of the budget that one call holds.

    Every call has one, so this is a Struct, which C code constructs, and ``take`` and ``set`` do
    not call ``add``.
    """

    _budget: Budget
    _share: Share = field(default_factory=Share)
    size: int = 0

    def belongs_to(self, tenant: str) -> None:
        """Count what is held for a tenant, from now on, with what is held already."""
        self._share.held -= self.size
        self._share = self._budget.share(tenant)
        self._share.held += self.size

    def check(self) -> None:
        """Raise ``Busy`` if the budget, or the tenant's part of it, is used up."""
        if not self._budget.has_room(1, self._share, self.size):
            raise self._budget.refuse(self._share)

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes, or raise ``Busy``."""
        budget, share = self._budget, self._share
        if not budget.has_room(size, share, self.size):
            raise budget.refuse(share)
        budget.held += size
        share.held += size
        self.size += size

    def add(self, size: int) -> None:
        """Hold ``size`` more bytes, even over the budget: they are allocated already."""
        self._budget.held += size
        self._share.held += size
        self.size += size

    def set(self, size: int) -> None:
        """Hold exactly ``size`` bytes from now on."""
        change = size - self.size
        if change:
            self._budget.held += change
            self._share.held += change
            self.size = size
