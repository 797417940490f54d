"""Creates the access control that the settings describe."""

from __future__ import annotations

from penstock.errors import BadSetting
from penstock.model.clock import Clock
from penstock.server.access.access import Access
from penstock.server.access.keys import Documents, Keys
from penstock.server.access.tokens import Tokens
from penstock.settings import Settings

__all__ = ["open_access"]


def open_access(settings: Settings, engine: Documents, clock: Clock) -> Access:
    """Access control from the settings; raises ``BadSetting`` if they are inconsistent."""
    tokens = _tokens(settings, clock)
    if tokens is not None and not settings.auth:
        # An operator who configures tokens expects the server to require them.
        raise BadSetting("Tokens are configured, but auth is off. Set --auth.", field="auth")
    return Access(clock, Keys(engine, clock), tokens, enabled=settings.auth)


def _tokens(settings: Settings, clock: Clock) -> Tokens | None:
    if settings.jwt_secret is None and settings.jwt_public_key is None:
        for field in ("jwt_issuer", "jwt_audience"):
            if getattr(settings, field) is not None:
                raise BadSetting(
                    f"{field} is set, but neither jwt_secret nor jwt_public_key is.", field=field
                )
        return None
    return Tokens(
        clock,
        secret=settings.jwt_secret,
        public_key=settings.jwt_public_key,
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        leeway_s=settings.jwt_leeway_s,
    )
