"""Call slots: limits the concurrent calls of one kind, and divides them between tenants.

There is one limit for all tenants together and one per tenant. A tenant may take a place only
while it has less than four times as many as are free. So one tenant alone gets four fifths of
the places, two get four ninths each, and a tenant that comes later always finds some free.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import Busy

__all__ = ["CallSlots"]

#: A tenant may have this many times as many places as are free.
_OF_FREE: Final = 4


class CallSlots:
    """The calls of one kind that are in progress."""

    def __init__(self, kind: str, limit: int, tenant_limit: int, *, field: str | None) -> None:
        self._kind = kind
        self._limit = limit
        self._tenant_limit = tenant_limit
        self._field = field
        self._taken: dict[str, int] = {}
        self.taken = 0
        """By all tenants together."""

    def check(self, tenant: str) -> None:
        """Raise ``Busy`` if the tenant may not take another place."""
        if self.taken >= self._limit:
            raise self._busy(f"{self.taken} calls {self._kind}", self._limit)
        own = self._taken.get(tenant, 0)
        if own >= self._tenant_limit or (own and own >= _OF_FREE * (self._limit - self.taken)):
            raise self._busy(f"{own} calls of this tenant {self._kind}", own)

    def take(self, tenant: str) -> None:
        """Take a place, or raise ``Busy``."""
        self.check(tenant)
        self._taken[tenant] = self._taken.get(tenant, 0) + 1
        self.taken += 1

    def give_back(self, tenant: str) -> None:
        """Return a place."""
        self.taken -= 1
        left = self._taken[tenant] - 1
        if left:
            self._taken[tenant] = left
        else:
            del self._taken[tenant]

    def _busy(self, found: str, limit: int) -> Busy:
        return Busy(f"{found} already.", field=self._field, limit=limit)
