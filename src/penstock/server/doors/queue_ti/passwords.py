"""Hashes of passwords, computed on a thread, one at a time.

A hash takes some 50 ms of a core and 16 MiB. Anyone may try to log in, and the limit per address
believes the header ``X-Real-IP``. So hashes wait for each other, and a login is refused while many
wait: other calls keep the other cores, and the threads that they need.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import Final

from penstock.errors import TooManyRequests
from penstock.server.doors.queue_ti.refusals import invalid
from penstock.telemetry import RandomBytes

__all__ = ["MAX_WAITING", "Passwords"]

MIN_PASSWORD: Final = 12
_MAX_PASSWORD: Final = 1024
_SALT_BYTES: Final = 16
#: OWASP's smallest parameters: 16 MiB and some 50 ms.
_SCRYPT_N: Final = 2**14
_SCRYPT_R: Final = 8
#: Hashes that wait or are computed: a second's worth.
MAX_WAITING: Final = 20
_RETRY_AFTER_MS: Final = 1_000


class Passwords:
    """Hashes passwords and verifies them."""

    def __init__(self, random: RandomBytes) -> None:
        self._random = random
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def hashed(self, password: str) -> tuple[bytes, bytes]:
        """A salt and the hash of a new password; raises ``BadInput`` for one that is too short."""
        if not MIN_PASSWORD <= len(password) <= _MAX_PASSWORD:
            raise invalid(f"password must be at least {MIN_PASSWORD} characters", "password")
        salt = self._random(_SALT_BYTES)
        return salt, await self._hash(password, salt)

    async def matches(self, password: str, salt: bytes, hashed: bytes) -> bool:
        """Whether the hash is of this password; takes as long if it is not."""
        return hmac.compare_digest(await self._hash(password, salt), hashed)

    async def _hash(self, password: str, salt: bytes) -> bytes:
        if self._waiting >= MAX_WAITING:
            raise TooManyRequests(
                "too many login attempts", limit=MAX_WAITING, retry_after_ms=_RETRY_AFTER_MS
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(_scrypt, password[: _MAX_PASSWORD + 1], salt)
        finally:
            self._waiting -= 1


def _scrypt(password: str, salt: bytes) -> bytes:
    secret = password.encode(errors="surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=1)
