"""Access: from the header of a request to the credential behind it.

What was authenticated is remembered by the bytes of the header, so that a call costs a
look-up and not a hash, a signature or a read of the store. What was remembered is looked at
again after ``FRESH_MS``, by one call while the others go on, and never used for longer than
``STALE_MS``: so long may a key live that was revoked through another server on the same store.
One that was revoked through this server is refused at once. Refusals are not remembered.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import Unauthenticated
from penstock.model.clock import Clock
from penstock.server.access.credential import ANYBODY, Credential
from penstock.server.access.keys import KEY_PREFIX, Keys
from penstock.server.access.tokens import Tokens

__all__ = ["FRESH_MS", "MAX_REMEMBERED", "STALE_MS", "Access"]

FRESH_MS: Final = 1_000
STALE_MS: Final = 5_000
#: Credentials in memory, of at most ``_MAX_HEADER`` bytes each; the oldest one goes.
MAX_REMEMBERED: Final = 4_096
#: A token with the most grants there may be fits.
_MAX_HEADER: Final = 16 * 1024
#: RFC 6750: the word in any case, blanks, then what may stand in a token.
_BEARER: Final = re.compile(rb"(?i:bearer) +([A-Za-z0-9._~+/=-]+) *")


class Access:
    """Who may come in."""

    def __init__(
        self, clock: Clock, keys: Keys, tokens: Tokens | None = None, *, enabled: bool = True
    ) -> None:
        self.keys = keys
        self.enabled = enabled
        """Without, everybody may do anything."""
        self._clock = clock
        self._tokens = tokens
        self._known: dict[bytes, _Known] = {}
        self._revision = keys.revision

    def recall(self, header: bytes | None) -> Credential | None:
        """The credential, if the header is a known one; else ``authenticate`` has to look."""
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
        # A clock that was set back makes an age negative: then it is looked at again.
        longest = STALE_MS if known.checking else FRESH_MS
        return credential if 0 <= now - known.checked_at < longest else None

    async def authenticate(self, header: bytes | None) -> Credential:
        """Whom the value of an Authorization header stands for, or ``Unauthenticated``."""
        credential = self.recall(header)
        if credential is not None:
            return credential
        text = _bearer(header)
        assert header is not None
        known = self._known.get(header)
        if known is not None:
            known.checking = True
        revision = self.keys.revision
        try:
            credential = await self._look(text)
        except Unauthenticated:
            self._known.pop(header, None)
            raise
        finally:
            if known is not None:
                known.checking = False
        # A key that was revoked in the meantime is not remembered as it was before.
        if revision == self.keys.revision:
            self._remember(header, credential)
        return credential

    async def _look(self, text: str) -> Credential:
        if text.startswith(KEY_PREFIX):
            return await self.keys.authenticate(text)
        if self._tokens is None:
            raise Unauthenticated("This is no API key, and tokens are not accepted here.")
        return self._tokens.authenticate(text)

    def _remember(self, header: bytes, credential: Credential) -> None:
        # Taken out and put in again at the end: whoever is in use is not the oldest.
        self._known.pop(header, None)
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[header] = _Known(credential, self._clock.now())


class _Known:
    """A credential, when it was last looked at, and whether somebody is looking now."""

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
