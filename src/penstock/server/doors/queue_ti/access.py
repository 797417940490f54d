"""Who calls queue-ti, and what they may do: users with tokens of 15 minutes, or Penstock's keys.

A user logs in with a name and a password and gets a token (HS256), signed with a secret of the
store. Every call looks the user up, so a deleted user or a revoked grant counts immediately. An
API key or token of Penstock works in the same header, with its own grants: *read*, *write* and
*dequeue* on a topic are ``read``, ``publish`` and ``consume`` on its topic or queue, and
administrators have ``admin:*``. Such a key can also log in, as the password of any user name: so
the first users can be created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jwt
from msgspec.structs import replace

from penstock.errors import Forbidden, TooManyRequests, Unauthenticated
from penstock.server.access import ANYBODY, DEFAULT_TENANT, EVERYTHING, Action, Credential
from penstock.server.access.keys import KEY_PREFIX
from penstock.server.doors.queue_ti.accounts import Accounts, UserGrant
from penstock.server.doors.queue_ti.topics import TopicName
from penstock.server.service import Service
from penstock.telemetry import RandomBytes

__all__ = [
    "TOKEN_S",
    "Caller",
    "Identities",
    "LoginRates",
    "check_admin",
    "check_may",
    "may",
    "may_dequeue",
]

TOKEN_S: Final = 15 * 60
_SECRET_KIND: Final = "queue-ti-secret"  # noqa: S105  (the kind of a document)
_SECRET_BYTES: Final = 32
_SCHEME: Final = b"Bearer "
_MAX_HEADER: Final = 16 * 1024
_ALGORITHM: Final = "HS256"
_OPTIONS: Final[Any] = {"require": ["exp", "uid"], "verify_exp": False, "verify_iat": False}
#: Marks the ``uid`` of a token that a key of Penstock has logged in for.
_KEY_USER: Final = "key:"
LOGINS: Final = 10
LOGIN_WINDOW_S: Final = 60
_MAX_CALLERS: Final = 10_000


class Caller(Credential, frozen=True, kw_only=True):
    """A user of queue-ti."""

    user_id: str
    username: str
    is_admin: bool
    user_grants: tuple[UserGrant, ...] = ()


class Identities:
    """Issues and verifies tokens."""

    def __init__(
        self,
        service: Service,
        accounts: Accounts,
        random: RandomBytes,
        *,
        requests_per_s: int | None = None,
    ) -> None:
        self._service = service
        self._requests_per_s = requests_per_s
        self._accounts = accounts
        self._random = random
        self._secret: bytes | None = None

    async def identify(self, header: bytes | None) -> Credential:
        """The credential that an Authorization header proves; raises ``Unauthenticated``."""
        access = self._service.access
        if not access.enabled:
            return ANYBODY
        if header is None or not header.startswith(_SCHEME) or len(header) > _MAX_HEADER:
            raise Unauthenticated("missing or invalid authorization header")
        text = header.removeprefix(_SCHEME).decode("latin-1")
        if text.startswith(KEY_PREFIX):
            return access.recall(header) or await access.authenticate(header)
        claims = await self._claims(text)
        if claims is None:
            # Not a token of this door; one of Penstock's, perhaps.
            return access.recall(header) or await access.authenticate(header)
        if self._service.now() >= int(claims["exp"]) * 1000:
            raise Unauthenticated("The token has expired.")
        return await self._caller(str(claims["uid"]), str(claims.get("tenant", DEFAULT_TENANT)))

    async def login(self, username: str, password: str) -> str:
        """A token for a user, or for a key of Penstock that is given as the password."""
        if password.startswith(KEY_PREFIX):
            credential = await self._service.access.keys.authenticate(password)
            if not credential.allows(Action.ADMIN, EVERYTHING):
                raise Unauthenticated("Only a key with admin:* can log in; use others directly.")
            return await self._token(_KEY_USER + credential.id, username, credential.tenant, True)
        tenant, _, name = username.rpartition("/")
        found = await self._accounts.login(tenant or DEFAULT_TENANT, name, password)
        if found is None:
            raise Unauthenticated("invalid credentials")
        return await self._token(found.id, name, tenant or DEFAULT_TENANT, found.is_admin)

    async def refresh(self, caller: Credential) -> str:
        """A new token for the user of a valid one."""
        if not isinstance(caller, Caller):
            raise Unauthenticated("Only a token of this door can be refreshed.")
        return await self._token(caller.user_id, caller.username, caller.tenant, caller.is_admin)

    async def _caller(self, uid: str, tenant: str) -> Caller:
        if uid.startswith(_KEY_USER):
            key = await self._service.access.keys.known(uid.removeprefix(_KEY_USER))
            caller = _caller(uid, key.name, key.tenant, is_admin=True)
            return replace(caller, requests_per_s=key.requests_per_s, counted_as=key.counted_as)
        user = await self._accounts.user(tenant, uid)
        if user is None:
            raise Unauthenticated("The user of this token was deleted.")
        caller = _caller(uid, user.username, tenant, is_admin=user.is_admin, grants=user.grants)
        return replace(caller, requests_per_s=self._requests_per_s)

    async def _token(self, uid: str, username: str, tenant: str, is_admin: bool) -> str:
        now_s = self._service.now() // 1000
        claims = {
            "uid": uid,
            "sub": username,
            "adm": is_admin,
            "tenant": tenant,
            "iat": now_s,
            "exp": now_s + TOKEN_S,
        }
        return jwt.encode(claims, await self._key(), algorithm=_ALGORITHM)

    async def _claims(self, text: str) -> Mapping[str, Any] | None:
        """The claims of a token of this door; None if it is not one."""
        try:
            claims = jwt.decode(text, await self._key(), algorithms=[_ALGORITHM], options=_OPTIONS)
        # A token is untrusted input: any error in decoding it is the caller's, not ours.
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None
        return claims if isinstance(claims["exp"], int) else None

    async def _key(self) -> bytes:
        """The secret of the store; the first server that needs it creates it."""
        if self._secret is None:
            self._secret = await self._service.broker.engine.add_document(
                _SECRET_KIND, "tokens", self._random(_SECRET_BYTES)
            )
        return self._secret


class LoginRates:
    """At most ten logins per minute from one address, and for one user name."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._buckets: dict[str, list[int]] = {}

    def take(self, *callers: str) -> None:
        """Count one login; raises ``TooManyRequests``."""
        now = self._service.now()
        since = now - LOGIN_WINDOW_S * 1000
        for caller in callers:
            times = [at for at in self._buckets.pop(caller, ()) if at > since]
            if len(times) >= LOGINS:
                self._buckets[caller] = times
                raise TooManyRequests(
                    "too many login attempts",
                    limit=LOGINS,
                    retry_after_ms=max(1, times[0] - since),
                )
            if len(self._buckets) >= _MAX_CALLERS:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[caller] = [*times, now]


def _caller(
    uid: str,
    username: str,
    tenant: str,
    *,
    is_admin: bool,
    grants: tuple[UserGrant, ...] = (),
) -> Caller:
    return Caller(
        tenant=tenant,
        grants=ANYBODY.grants if is_admin else (),
        name=username,
        id=uid,
        counted_as=f"queue-ti {uid}",
        user_id=uid,
        username=username,
        is_admin=is_admin,
        user_grants=grants,
    )


def check_admin(caller: Credential) -> None:
    """Raise ``Forbidden`` unless the caller is an administrator."""
    if not caller.allows(Action.ADMIN, EVERYTHING):
        raise Forbidden("admin access required")


def may(caller: Credential, action: str, topic: TopicName) -> bool:
    """Whether the caller may ``read`` or ``write`` a topic."""
    if isinstance(caller, Caller) and not caller.is_admin:
        return any(
            grant.action == action and grant.matches(topic.text) for grant in caller.user_grants
        )
    return caller.allows(Action.READ if action == "read" else Action.PUBLISH, topic.name)


def may_dequeue(caller: Credential, topic: TopicName, group: str) -> bool:
    """Whether the caller may consume from a topic, in a group."""
    if not isinstance(caller, Caller) or caller.is_admin:
        return caller.allows(Action.CONSUME, topic.queue(group))
    matching = [grant for grant in caller.user_grants if grant.matches(topic.text)]
    named = [grant for grant in matching if grant.action == "consume"]
    if not any(grant.action in ("write", "consume") for grant in matching):
        return False
    return not group or not named or any(grant.consumer_group == group for grant in named)


def check_may(allowed: bool) -> None:
    """Raise ``Forbidden`` unless the answer is yes."""
    if not allowed:
        raise Forbidden("insufficient permissions")
