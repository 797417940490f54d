"""A credential: the tenant that a call acts for, and what it may do.

It names one tenant, and everything a call does happens in that tenant (T1). A credential is a
value: the key or token was validated when the credential was created.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.errors import Forbidden
from penstock.model.limits import shown
from penstock.server.access.grants import ALL_GRANTS, EVERYTHING, Action, Grant

__all__ = ["ANYBODY", "DEFAULT_TENANT", "Credential"]

#: The tenant of a server without auth. Its administrators are the operators of the server.
DEFAULT_TENANT: Final = "default"


class Credential(Struct, frozen=True, kw_only=True):
    """A tenant and what may be done in it."""

    tenant: str
    grants: tuple[Grant, ...]
    name: str
    """The name that people gave it."""
    id: str
    """The id of the key or token. It appears in logs; the secret never does."""
    expires_at: int | None = None
    """Epoch milliseconds; None is never."""
    requests_per_s: int | None = None
    """The most requests per second; None is no limit."""
    counted_as: str = ""
    """Whose requests count together: those of a key, or of a token's subject."""

    def allows(self, action: str, name: str) -> bool:
        """Whether a grant covers this action on this topic or queue; ``*`` means all of them."""
        for grant in self.grants:  # noqa: SIM110  (a generator costs twice as much, every call)
            if grant.covers(action, name):
                return True
        return False

    def check(self, action: str, name: str) -> None:
        """Raise ``Forbidden`` unless a grant covers it."""
        if not self.allows(action, name):
            raise Forbidden(
                # Repeat only the name that the caller gave: other names may be confidential.
                f"This needs the grant {shown(f'{action}:{name}')}, which the credential"
                f" {self.name!r} does not have.",
                field="grants",
            )

    @property
    def is_operator(self) -> bool:
        """Whether it may do what affects every tenant, such as sweep or read all metrics."""
        return self.tenant == DEFAULT_TENANT and self.allows(Action.ADMIN, EVERYTHING)

    def check_operator(self) -> None:
        """Raise ``Forbidden`` unless the credential is an operator's."""
        if not self.is_operator:
            raise Forbidden(
                f"This concerns every tenant: it needs the grant {Action.ADMIN}:{EVERYTHING} in"
                f" the tenant {DEFAULT_TENANT!r}.",
                field="grants",
            )

    def is_valid(self, now: int) -> bool:
        """Whether it is still valid at this time, in epoch milliseconds."""
        return self.expires_at is None or now < self.expires_at


#: The credential of every caller of a server without auth: anything, in the default tenant.
ANYBODY: Final = Credential(tenant=DEFAULT_TENANT, grants=ALL_GRANTS, name="anybody", id="anybody")
