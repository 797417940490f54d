"""Creates the access control that the settings describe."""

from __future__ import annotations

from penstock.errors import BadSetting
from penstock.model.clock import Clock
from penstock.server.access.access import Access
from penstock.server.access.key_set import KeySet, source_of
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
    if settings.requests_per_s is not None and not settings.auth:
        raise BadSetting(
            "requests_per_s limits each credential, but auth is off. Set --auth.",
            field="requests_per_s",
        )
    keys = Keys(engine, clock, requests_per_s=settings.requests_per_s)
    return Access(clock, keys, tokens, enabled=settings.auth)


def _tokens(settings: Settings, clock: Clock) -> Tokens | None:
    if settings.jwt_secret is None and settings.jwt_public_key is None and not settings.jwt_jwks:
        for field in ("jwt_issuer", "jwt_audience"):
            if getattr(settings, field) is not None:
                raise BadSetting(
                    f"{field} is set, but none of jwt_secret, jwt_public_key and jwt_jwks is.",
                    field=field,
                )
        return None
    return Tokens(
        clock,
        secret=settings.jwt_secret,
        public_key=settings.jwt_public_key,
        key_set=_key_set(settings, clock),
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        leeway_s=settings.jwt_leeway_s,
        requests_per_s=settings.requests_per_s,
    )


def _key_set(settings: Settings, clock: Clock) -> KeySet | None:
    if not settings.jwt_jwks:
        return None
    keys = KeySet(clock, source_of(settings.jwt_jwks, allow_http=settings.jwt_jwks_http))
    keys.load()
    return keys
