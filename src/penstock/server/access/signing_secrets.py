"""Secrets for signatures: what the holder of an API key signs requests with.

A signature can only be verified by someone who knows the secret, and keys are stored as hashes. So
the secret is not stored but derived: the HMAC of the key's id under a key of the store, which is
chosen when it is first needed and never leaves the store. A key that is revoked takes its secret
with it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final, Protocol

from penstock.telemetry import RandomBytes

__all__ = ["SigningSecrets"]

_KIND: Final = "signing-key"
_NAME: Final = "first"
_KEY_BYTES: Final = 32


class _Store(Protocol):
    async def add_document(
        self, kind: str, name: str, value: bytes, replaces: bytes | None = None
    ) -> bytes: ...


class SigningSecrets:
    """The secrets of one store."""

    def __init__(self, store: _Store, random: RandomBytes) -> None:
        self._store = store
        self._random = random
        self._key: bytes | None = None

    async def of(self, key_id: str) -> str:
        """The secret of the API key with this id, whether or not there is one."""
        if self._key is None:
            # Of several servers that choose a key, one wins, and all of them get the winner's.
            self._key = await self._store.add_document(_KIND, _NAME, self._random(_KEY_BYTES))
        digest = hmac.new(self._key, key_id.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
