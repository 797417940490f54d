"""API keys: created once, shown once, stored as a hash.

A key is the text ``psk_<id>_<secret>``. The store holds its SHA-256, tenant, grants and name as
a document of the engine; only the owner of the key has the text. A plain hash is enough because
the secret is 256 random bits: a slow hash such as argon2 protects passwords that can be guessed
(docs/decisions/0023).

Every verb here acts on one tenant; keys of other tenants do not exist for it (T1). This module
caches nothing: ``access`` caches credentials, and drops them when ``revision`` changes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets  # noqa: TID251  (secrets come from the operating system; tests inject their own)
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from penstock.errors import BadInput, Conflict, NotFound, StoreCorrupt, Unauthenticated
from penstock.model.clock import Clock
from penstock.model.limits import MAX_TIME_MS, check_name, check_whole, shown
from penstock.server.access.credential import DEFAULT_TENANT, Credential
from penstock.server.access.grants import ALL_GRANTS, Grant, parse_grants
from penstock.server.access.signing_secrets import SigningSecrets
from penstock.telemetry import RandomBytes

__all__ = [
    "DOCUMENT_KIND",
    "KEY_PREFIX",
    "MAX_KEYS",
    "MAX_REQUEST_RATE",
    "Documents",
    "KeyInfo",
    "Keys",
    "NewKey",
]

DOCUMENT_KIND: Final = "api-key"
#: Distinguishes a key from a token, and lets secret scanners recognize a leaked key.
KEY_PREFIX: Final = "psk_"
#: The highest limit of requests per second.
MAX_REQUEST_RATE: Final = 1_000_000
#: Listing reads all keys of a tenant.
MAX_KEYS: Final = 1_000

_ID_BYTES: Final = 10
_SECRET_BYTES: Final = 32
_MAX_NAME: Final = 200
_ID: Final = re.compile(r"[a-z2-7]{16}")
_KEY: Final = re.compile(rf"{KEY_PREFIX}(?P<id>{_ID.pattern})_[A-Za-z0-9_-]{{43}}")
#: Compared with if there is no such key, so that both cases take equally long.
_NO_DIGEST: Final = "0" * 64


class Documents(Protocol):
    """The part of an engine that stores the keys."""

    async def put_document(self, kind: str, name: str, value: bytes) -> None:
        """Store the document, replacing any of the same name."""

    async def add_document(
        self, kind: str, name: str, value: bytes, replaces: bytes | None = None
    ) -> bytes:
        """Store the document unless there is one; returns the stored one."""

    async def get_document(self, kind: str, name: str) -> bytes | None:
        """The document, or None."""

    async def list_documents(self, kind: str) -> tuple[tuple[str, bytes], ...]:
        """All of a kind, by name."""

    async def delete_document(self, kind: str, name: str) -> bool:
        """Remove it; returns whether it existed."""


class KeyInfo(Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    grants: tuple[str, ...]
    created_at: int
    expires_at: int | None = None
    requests_per_s: int | None = None


class NewKey(Struct, frozen=True):
    """A key that was just created, and its text, which cannot be shown again."""

    info: KeyInfo
    key: str
    signing_secret: str = ""
    """What the SQS door's clients sign with; the access key id is the key's id. Empty if it comes
    from an older server."""


class _Stored(Struct, frozen=True, kw_only=True):
    """The document. Fields are added, never changed: older servers read the same store."""

    tenant: str
    name: str
    grants: tuple[str, ...]
    created_at: int
    expires_at: int | None
    sha256: str
    requests_per_s: int | None = None


class Keys:
    """The keys of one store."""

    def __init__(
        self,
        engine: Documents,
        clock: Clock,
        random: RandomBytes = secrets.token_bytes,
        *,
        requests_per_s: int | None = None,
    ) -> None:
        self._requests_per_s = requests_per_s
        self._engine = engine
        self._clock = clock
        self._random = random
        self.signing_secrets = SigningSecrets(engine, random)
        self.revision = 0
        """Increases when a key is revoked here; credentials cached before are then invalid."""

    async def create(
        self,
        tenant: str,
        grants: Iterable[object],
        *,
        name: str = "",
        expires_at: int | None = None,
        requests_per_s: int | None = None,
    ) -> NewKey:
        """Create a key; ``grants`` are texts such as ``publish:orders-*``.

        ``requests_per_s`` limits its requests; None is the server's default.
        """
        check_name(tenant, "tenant")
        now = self._clock.now()
        parsed = parse_grants(grants)
        if not parsed:
            raise BadInput("A key needs at least one grant.", field="grants")
        _check_label(name)
        _check_expiry(expires_at, now)
        if requests_per_s is not None:
            check_whole("requests_per_s", requests_per_s, 1, MAX_REQUEST_RATE)
        if len(await self.list(tenant)) >= MAX_KEYS:
            raise Conflict(
                f"The tenant has {MAX_KEYS} keys; revoke some.", field="tenant", limit=MAX_KEYS
            )
        key_id = base64.b32encode(self._random(_ID_BYTES)).decode().lower()
        code = base64.urlsafe_b64encode(self._random(_SECRET_BYTES)).decode().rstrip("=")
        if await self._engine.get_document(DOCUMENT_KIND, key_id) is not None:
            # One in 2^80: a collision means that the source of randomness is broken.
            raise Conflict("A key with this id already exists.", field="id")
        text = f"{KEY_PREFIX}{key_id}_{code}"
        stored = _Stored(
            tenant=tenant,
            name=name or key_id,
            grants=tuple(map(str, parsed)),
            created_at=now,
            expires_at=expires_at,
            sha256=_digest(text),
            requests_per_s=requests_per_s,
        )
        await self._engine.put_document(DOCUMENT_KIND, key_id, msgspec.json.encode(stored))
        secret = await self.signing_secrets.of(key_id)
        return NewKey(_info(key_id, stored), text, secret)

    async def first(self) -> NewKey | None:
        """Create a key with all grants if the store has no keys at all; else return None."""
        if await self._engine.list_documents(DOCUMENT_KIND):
            return None
        return await self.create(DEFAULT_TENANT, map(str, ALL_GRANTS), name="first")

    async def list(self, tenant: str) -> tuple[KeyInfo, ...]:
        """The tenant's keys, oldest first."""
        found = (
            _info(key_id, stored)
            for key_id, value in await self._engine.list_documents(DOCUMENT_KIND)
            if (stored := _decode(key_id, value)).tenant == tenant
        )
        return tuple(sorted(found, key=lambda info: (info.created_at, info.id)))

    async def revoke(self, tenant: str, key_id: str) -> None:
        """Remove a key; raises ``NotFound`` if the tenant has no key of that id."""
        known = _ID.fullmatch(key_id) is not None
        value = await self._engine.get_document(DOCUMENT_KIND, key_id) if known else None
        if value is None or _decode(key_id, value).tenant != tenant:
            raise NotFound(f"There is no key {shown(key_id)}.", field="id")
        await self._engine.delete_document(DOCUMENT_KIND, key_id)
        self.revision += 1

    async def authenticate(self, text: str) -> Credential:
        """The credential of a key; raises ``Unauthenticated`` without saying why it is invalid.

        Only for an expired key does the error say so: its sender knows the secret.
        """
        found = _KEY.fullmatch(text)
        key_id = "" if found is None else found["id"]
        value = await self._engine.get_document(DOCUMENT_KIND, key_id) if key_id else None
        stored = None if value is None else _decode(key_id, value)
        digest = _NO_DIGEST if stored is None else stored.sha256
        if not hmac.compare_digest(_digest(text), digest) or stored is None:
            raise Unauthenticated("The API key is not valid: unknown, revoked or mistyped.")
        return self._credential(key_id, stored)

    async def known(self, key_id: str) -> Credential:
        """The credential of a key by its id, which proves nothing; raises ``Unauthenticated``.

        For doors whose callers have proved otherwise that they hold the key.
        """
        well_formed = _ID.fullmatch(key_id) is not None
        value = await self._engine.get_document(DOCUMENT_KIND, key_id) if well_formed else None
        if value is None:
            raise Unauthenticated("There is no API key of this id, or it was revoked.")
        return self._credential(key_id, _decode(key_id, value))

    def _credential(self, key_id: str, stored: _Stored) -> Credential:
        credential = Credential(
            tenant=stored.tenant,
            grants=_grants(key_id, stored),
            name=stored.name,
            id=key_id,
            expires_at=stored.expires_at,
            requests_per_s=stored.requests_per_s or self._requests_per_s,
            counted_as=f"key {key_id}",
        )
        if not credential.is_valid(self._clock.now()):
            raise Unauthenticated("The API key has expired.")
        return credential


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _info(key_id: str, stored: _Stored) -> KeyInfo:
    return KeyInfo(
        id=key_id,
        tenant=stored.tenant,
        name=stored.name,
        grants=stored.grants,
        created_at=stored.created_at,
        expires_at=stored.expires_at,
        requests_per_s=stored.requests_per_s,
    )


def _decode(key_id: str, value: bytes) -> _Stored:
    try:
        return msgspec.json.decode(value, type=_Stored)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt(f"The API key {key_id} cannot be read.") from error


def _grants(key_id: str, stored: _Stored) -> tuple[Grant, ...]:
    try:
        return parse_grants(stored.grants)
    except BadInput as error:
        raise StoreCorrupt(f"The grants of the API key {key_id} cannot be read.") from error


def _check_label(name: object) -> None:
    if not isinstance(name, str) or len(name) > _MAX_NAME or not name.isprintable():
        raise BadInput(
            f"name is {shown(name)}; it is one line of at most {_MAX_NAME} characters.",
            field="name",
            limit=_MAX_NAME,
        )


def _check_expiry(expires_at: object, now: int) -> None:
    if expires_at is None:
        return
    if type(expires_at) is not int or not now < expires_at <= MAX_TIME_MS:
        raise BadInput(
            f"expires_at is {shown(expires_at)}; it is a future time in epoch milliseconds.",
            field="expires_at",
        )
