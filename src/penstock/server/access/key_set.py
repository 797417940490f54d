"""A JSON Web Key Set (RFC 7517): the public keys of an issuer, which change over time.

The set is read when the server starts, and again after ``REFRESH_MS``. A token with an unknown
key id causes one more read, at most once per ``RETRY_MS`` however many such tokens arrive. If a
read fails, the known keys are used until ``STALE_MS`` after the last success. Reading happens in
a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final, TypeAlias
from urllib.parse import urlsplit

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from penstock.errors import BadSetting, Unauthenticated
from penstock.model.clock import Clock
from penstock.model.limits import shown

__all__ = [
    "MAX_SET_BYTES",
    "REFRESH_MS",
    "RETRY_MS",
    "STALE_MS",
    "KeySet",
    "PublicKey",
    "source_of",
]

REFRESH_MS: Final = 300_000
#: Between two reads: what a caller with made-up key ids can cause.
RETRY_MS: Final = 30_000
STALE_MS: Final = 3_600_000
MAX_SET_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 100
_MIN_RSA_BITS: Final = 2048
_TIMEOUT_S: Final = 5.0
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey
#: A key id and the key's algorithm.
_Named: TypeAlias = tuple[str | None, str]

log = logging.getLogger("penstock.server")


class KeySet:
    """The keys of one source."""

    def __init__(self, clock: Clock, read: Callable[[], bytes]) -> None:
        self._clock = clock
        self._read = read
        self._keys: Mapping[_Named, PublicKey] = {}
        self._read_at = self._tried_at = 0
        self._reading: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read the set for the first time; raises ``BadSetting`` if that fails."""
        try:
            self._keys = _parse(self._read())
        except (OSError, HTTPException, ValueError) as error:
            raise BadSetting(f"jwt_jwks cannot be used: {error}.", field="jwt_jwks") from error
        self._read_at = self._tried_at = self._clock.now()

    async def prepare(self, kid: str | None, algorithm: str) -> None:
        """Read the set again if it is old, or if it lacks the key and was not just read."""
        now = self._clock.now()
        is_old = not 0 <= now - self._read_at < REFRESH_MS
        if not is_old and self._find(kid, algorithm) is not None:
            return
        if self._reading is None and 0 <= now - self._tried_at < RETRY_MS:
            return
        if self._reading is None:
            self._tried_at = now
            self._reading = asyncio.create_task(self._refresh())
        await asyncio.shield(self._reading)

    def find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The key of this id for this algorithm; without an id, the only one for it."""
        if self._clock.now() - self._read_at >= STALE_MS:
            raise Unauthenticated("The issuer's keys cannot be read, and the known ones are old.")
        return self._find(kid, algorithm)

    def _find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        if kid is not None:
            return self._keys.get((kid, algorithm))
        found = [key for (_, kind), key in self._keys.items() if kind == algorithm]
        return found[0] if len(found) == 1 else None

    async def _refresh(self) -> None:
        try:
            self._keys = _parse(await asyncio.to_thread(self._read))
            self._read_at = self._clock.now()
        except (OSError, HTTPException, ValueError) as error:
            log.warning("jwt_jwks cannot be read: %s.", error)
        finally:
            self._reading = None


def source_of(place: str, *, allow_http: bool = False) -> Callable[[], bytes]:
    """A function that reads the set at a URL or in a file; raises ``BadSetting`` for a bad one."""
    parts = urlsplit(place)
    if parts.scheme not in ("http", "https"):
        path = Path(place.removeprefix("file://").removeprefix("file:"))
        return lambda: _read_file(path)
    if parts.scheme == "http" and not allow_http and parts.hostname not in _LOCAL:
        raise BadSetting(
            "jwt_jwks is an http URL: anyone on the way could replace the keys. Use https, or set"
            " jwt_jwks_http.",
            field="jwt_jwks",
        )
    if not parts.hostname:
        raise BadSetting(f"jwt_jwks is {shown(place)}, which names no host.", field="jwt_jwks")
    opener = urllib.request.build_opener(_NoRedirect)
    return lambda: _read_url(opener, place)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_SET_BYTES + 1)


def _read_url(opener: urllib.request.OpenerDirector, url: str) -> bytes:
    # The scheme was checked by ``source_of``.
    with opener.open(url, timeout=_TIMEOUT_S) as reply:
        body: bytes = reply.read(MAX_SET_BYTES + 1)
    return body


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could lead to http or to an address inside the network."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """None makes urllib raise ``HTTPError``."""


def _parse(document: bytes) -> dict[_Named, PublicKey]:
    """The usable keys of the set; ``ValueError`` if it is malformed or has none."""
    if len(document) > MAX_SET_BYTES:
        raise ValueError(f"it has more than {MAX_SET_BYTES} bytes")
    try:
        content = msgspec.json.decode(document, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"it is not a JSON object ({error})") from None
    listed = content.get("keys")
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise ValueError(f"its member keys is not a list of at most {MAX_KEYS}")
    found = dict(filter(None, map(_key, listed)))
    if not found:
        raise ValueError("it has no RSA key of 2048 bits or more, and no P-256 key, for signatures")
    return found


def _key(item: object) -> tuple[_Named, PublicKey] | None:
    """The key, if this server can use it: an issuer may list others."""
    if not isinstance(item, dict) or item.get("use", "sig") != "sig":
        return None
    algorithm = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}.get(
        (str(item.get("kty")), item.get("crv") if item.get("kty") == "EC" else None)
    )
    if algorithm is None or item.get("alg", algorithm) != algorithm:
        return None
    try:
        key = jwt.PyJWK(item, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
        return None
    kid = item.get("kid")
    # A set may hold private keys by mistake; PyJWK then returns a private key.
    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey):
        return None
    return (kid if isinstance(kid, str) else None, algorithm), key
