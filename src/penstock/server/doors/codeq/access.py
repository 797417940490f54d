"""Who calls codeQ: producers, workers and administrators, by codeQ's tokens or Penstock's grants.

A token of codeQ is verified like Penstock's own (``jwt_jwks``, ``jwt_issuer`` and so on); its
audience says whether it is a worker's or a producer's, and its tenant claims name the tenant. An
API key or a token of Penstock acts as all three, within its grants: ``publish`` on a command to
create its tasks, ``consume`` to work on them, ``admin:*`` to administer. Without auth everybody may
do everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from penstock.errors import Forbidden, Unauthenticated
from penstock.model.limits import shown
from penstock.model.names import escape
from penstock.server.access import ALL_GRANTS, ANYBODY, EVERYTHING, Action, Credential
from penstock.server.doors.codeq.refusals import CodeqError
from penstock.server.service import Service

__all__ = ["DEFAULT_COMMANDS", "Caller", "Identities", "check_admin", "check_producer", "worker"]

#: The commands of a worker that may work on all and names none, as in codeQ.
DEFAULT_COMMANDS: Final = ("GENERATE_MASTER", "GENERATE_CREATIVE")
ANY_COMMAND: Final = "*"
_TENANT: Final = re.compile(r"[a-z][a-z0-9-]{1,62}")
_TENANT_CLAIMS: Final = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
_ADMIN_SCOPE: Final = "codeq:admin"
_MAX_COMMANDS: Final = 100


class Caller(Credential, frozen=True, kw_only=True):
    """The holder of a token of codeQ."""

    worker_id: str
    is_worker: bool
    is_admin: bool
    scopes: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()


class Identities:
    """Verifies tokens."""

    def __init__(
        self,
        service: Service,
        *,
        worker: str,
        producer: str | None,
        requests_per_s: int | None = None,
    ) -> None:
        self._requests_per_s = requests_per_s
        self._access = service.access
        self._worker = worker
        self._producer = producer

    async def identify(self, header: bytes | None) -> Credential:
        """The credential that an Authorization header proves; raises ``Unauthenticated``."""
        access = self._access
        if not access.enabled:
            return ANYBODY
        known = access.recall(header)
        if known is not None:
            return known
        try:
            return self._limited(_worker_of(await access.claims(header, self._worker)))
        except Unauthenticated:
            pass
        if self._producer is not None:
            try:
                claims = await access.claims(header, self._producer)
            except Unauthenticated:
                claims = {}
            # A token with grants is one of Penstock.
            if claims and "grants" not in claims:
                return self._limited(_caller(claims, is_worker=False))
        return await access.authenticate(header)

    def _limited(self, caller: Caller) -> Caller:
        return replace(caller, requests_per_s=self._requests_per_s)


def _worker_of(claims: Mapping[str, Any]) -> Caller:
    caller = _caller(claims, is_worker=True)
    if not caller.commands or not caller.scopes:
        raise CodeqError(401, "invalid worker token")
    return caller


def _caller(claims: Mapping[str, Any], *, is_worker: bool) -> Caller:
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise CodeqError(401, "invalid token: no sub")
    scope = claims.get("scope")
    scopes = frozenset(scope.split()) if isinstance(scope, str) else frozenset[str]()
    role = claims.get("role")
    is_admin = (isinstance(role, str) and role.upper() == "ADMIN") or _ADMIN_SCOPE in scopes
    given = claims.get("eventTypes")
    commands = tuple(given) if isinstance(given, list) else ()
    if len(commands) > _MAX_COMMANDS or not all(isinstance(name, str) for name in commands):
        raise CodeqError(401, "invalid token: eventTypes")
    return Caller(
        tenant=_tenant(claims, subject),
        grants=ALL_GRANTS if is_admin else (),
        name=subject,
        id=subject,
        counted_as=f"codeq {subject}",
        worker_id=subject,
        is_worker=is_worker,
        is_admin=is_admin,
        scopes=scopes,
        commands=commands,
    )


def _tenant(claims: Mapping[str, Any], subject: str) -> str:
    """The tenant: all claims that name one must agree."""
    named = {claims[name] for name in _TENANT_CLAIMS if isinstance(claims.get(name), str)}
    wrong = any(name in claims and not isinstance(claims[name], str) for name in _TENANT_CLAIMS)
    tenant = next(iter(named), subject)
    if wrong or len(named) > 1 or _TENANT.fullmatch(tenant) is None:
        raise CodeqError(403, "invalid tenant claims")
    return str(tenant)


def check_producer(caller: Credential, command: str) -> None:
    """Raise unless the caller may create tasks of a command."""
    if isinstance(caller, Caller):
        if caller.is_worker and not caller.is_admin:
            raise CodeqError(401, "a producer token is required")
    else:
        caller.check(Action.PUBLISH, escape(command, "command"))


def check_admin(caller: Credential) -> None:
    """Raise unless the caller is an administrator: 401, as in codeQ."""
    if not caller.allows(Action.ADMIN, EVERYTHING):
        raise CodeqError(401, "admin role required")


class Worker:
    """A worker, and the commands that it may work on."""

    def __init__(self, caller: Credential) -> None:
        self._caller = caller
        own = caller.worker_id if isinstance(caller, Caller) else caller.id
        self.id = own
        self.consumer = escape(own, "sub")
        """The consumer of its claims."""
        self.commands = caller.commands if isinstance(caller, Caller) else (ANY_COMMAND,)

    def check(self, command: str) -> None:
        """Raise ``Forbidden`` unless the worker may work on a command."""
        caller = self._caller
        if not isinstance(caller, Caller):
            caller.check(Action.CONSUME, escape(command, "command"))
        elif ANY_COMMAND not in caller.commands and command not in caller.commands:
            raise Forbidden(f"The token's eventTypes do not cover {shown(command)}.")

    def choose(self, given: list[str] | None) -> list[str]:
        """The commands to claim from, each once."""
        chosen = given or [name for name in self.commands if name != ANY_COMMAND]
        found = list(dict.fromkeys(chosen or DEFAULT_COMMANDS))
        if len(found) > _MAX_COMMANDS:
            raise CodeqError(400, f"at most {_MAX_COMMANDS} commands", field="commands")
        for command in found:
            self.check(command)
        return found


def worker(caller: Credential, scope: str) -> Worker:
    """The caller as a worker with this scope: 401 for other tokens, 403 without the scope."""
    if isinstance(caller, Caller):
        if not caller.is_worker:
            raise CodeqError(401, "a worker token is required")
        if scope not in caller.scopes:
            raise Forbidden(f"missing scope {scope}")
    return Worker(caller)
