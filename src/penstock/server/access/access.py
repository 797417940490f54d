"""Access: maps the Authorization header of a request to a credential.

Authenticated credentials are cached by the bytes of the header, so that a call costs a lookup
instead of a hash, a signature check or a read of the store. After ``FRESH_MS`` one call
re-validates a cached credential while the others keep using it, for at most ``STALE_MS``. A key
that was revoked through another server on the same store is therefore accepted for up to that
long; one revoked through this server is refused immediately. Refusals are not cached.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from penstock.errors import Unauthenticated
from penstock.model.clock import Clock
from penstock.server.access.credential import ANYBODY, Credential
from penstock.server.access.keys import KEY_PREFIX, Keys
from penstock.server.access.rates import Rates
from penstock.server.access.tokens import Tokens

__all__ = ["FRESH_MS", "MAX_REMEMBERED", "STALE_MS", "Access"]

FRESH_MS: Final = 1_000
STALE_MS: Final = 5_000
#: Cached credentials, of at most ``_MAX_HEADER`` bytes each; the oldest is evicted.
MAX_REMEMBERED: Final = 4_096
#: Large enough for a token with ``MAX_GRANTS`` grants.
_MAX_HEADER: Final = 16 * 1024
#: RFC 6750: the scheme in any case, spaces, then the token.
_BEARER: Final = re.compile(rb"(?i:bearer) +([A-Za-z0-9._~+/=-]+) *")


class Access:
    """Authenticates requests."""

    def __init__(
        self, clock: Clock, keys: Keys, tokens: Tokens | None = None, *, enabled: bool = True
    ) -> None:
        self.keys = keys
        self.enabled = enabled
        """If False, every caller may do anything."""
        self._clock = clock
        self._tokens = tokens
        self.rates = Rates(clock)
        #: By the bytes of a header, or by the text of a key's id: one is never taken for the other.
        self._known: dict[bytes | str, _Known] = {}
        self._revision = keys.revision

    def recall(self, header: bytes | None) -> Credential | None:
        """The cached credential; None if the caller has to ``authenticate``."""
        return self._recall(header)

    def _recall(self, header: bytes | str | None) -> Credential | None:
        if not self.enabled:
            return ANYBODY
        if self._revision != self.keys.revision:
            self._known.clear()
            self._revision = self.keys.revision
        if header is None:
            return None
        known = self._known.get(header)
        if known is None:
            return None
        now = self._clock.now()
        credential = known.credential
        if credential.expires_at is not None and now >= credential.expires_at:
            return None
        # A clock that was set back makes the age negative; validate again in that case.
        longest = STALE_MS if known.checking else FRESH_MS
        return credential if 0 <= now - known.checked_at < longest else None

    async def authenticate(self, header: bytes | None) -> Credential:
        """The credential that an Authorization header proves; raises ``Unauthenticated``."""
        credential = self.recall(header)
        if credential is not None:
            return credential
        text = _bearer(header)
        assert header is not None
        return await self._validate(header, partial(self._look, text))

    async def of_key(self, key_id: str) -> Credential:
        """The credential of an API key, by its id, which proves nothing.

        For doors whose callers prove that they know the key by a signature.
        """
        look = partial(self.keys.known, key_id)
        return self._recall(key_id) or await self._validate(key_id, look)

    async def _validate(
        self, header: bytes | str, look: Callable[[], Awaitable[Credential]]
    ) -> Credential:
        known = self._known.get(header)
        if known is not None:
            known.checking = True
        revision = self.keys.revision
        try:
            credential = await look()
        except Unauthenticated:
            self._known.pop(header, None)
            raise
        finally:
            if known is not None:
                known.checking = False
        # A key may have been revoked during the await; do not cache it.
        if revision == self.keys.revision:
            self._remember(header, credential)
        return credential

    async def claims(self, header: bytes | None, audience: str) -> Mapping[str, Any]:
        """The claims of a token with this audience, for doors whose tokens have other claims.

        Raises ``Unauthenticated``, also for an API key.
        """
        text = _bearer(header)
        if self._tokens is None or text.startswith(KEY_PREFIX):
            raise Unauthenticated("Tokens are not accepted here.")
        await self._tokens.prepare(text)
        return self._tokens.claims(text, audience)

    async def _look(self, text: str) -> Credential:
        if text.startswith(KEY_PREFIX):
            return await self.keys.authenticate(text)
        if self._tokens is None:
            raise Unauthenticated("This is not an API key, and tokens are not accepted here.")
        await self._tokens.prepare(text)
        return self._tokens.authenticate(text)

    def _remember(self, header: bytes | str, credential: Credential) -> None:
        # Reinsert at the end, so that a credential in use is not the oldest.
        self._known.pop(header, None)
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[header] = _Known(credential, self._clock.now())


class _Known:
    """A credential, when it was last validated, and whether a call is validating it now."""

    __slots__ = ("checked_at", "checking", "credential")

    def __init__(self, credential: Credential, checked_at: int) -> None:
        self.credential = credential
        self.checked_at = checked_at
        self.checking = False


def _bearer(header: bytes | None) -> str:
    if header is None:
        raise Unauthenticated("The call has no credential.")
    found = _BEARER.fullmatch(header) if len(header) <= _MAX_HEADER else None
    if found is None:
        raise Unauthenticated("The Authorization header is not a bearer credential.")
    return found[1].decode("ascii")
