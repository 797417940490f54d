"""API keys of the caller's tenant: create, list, revoke (T1).

A caller with ``admin:*`` in a tenant may create keys for it, never for another tenant. The
operator creates a tenant's first key on the command line.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.errors import BadInput, Conflict, NotFound
from penstock.server.access import KeyInfo, NewKey
from penstock.server.call import Call
from penstock.server.request_parsing import Body
from penstock.server.routing import Empty, Need, Route
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]


class KeyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Grants, expiry, limit and name of a new key."""

    grants: list[str]
    name: str = ""
    expires_at: int | None = None
    requests_per_s: int | None = None


class KeyList(Struct, frozen=True):
    """The tenant's keys, oldest first, without their secrets."""

    keys: tuple[KeyInfo, ...]


async def create_key(call: Call, query: Empty, body: KeyBody) -> NewKey:  # noqa: ARG001
    """Create a key; only this reply contains its text."""
    return await call.service.access.keys.create(
        call.broker.tenant,
        body.grants,
        name=body.name,
        expires_at=body.expires_at,
        requests_per_s=body.requests_per_s,
    )


async def list_keys(call: Call, query: Empty, body: Empty) -> KeyList:  # noqa: ARG001
    """The tenant's keys."""
    return KeyList(await call.service.access.keys.list(call.broker.tenant))


async def revoke_key(call: Call, query: Empty, body: Empty) -> None:  # noqa: ARG001
    """Revoke a key; this server refuses it immediately."""
    await call.service.access.keys.revoke(call.broker.tenant, call.name)


_ADMIN: Final = Need("admin")

ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/keys",
        verb="create_key",
        summary="Create an API key; its text is shown once",
        need=_ADMIN,
        handler=create_key,
        query=Empty,
        body=Body(KeyBody),
        status=201,
        replies=((JSON, NewKey),),
        errors=(BadInput, Conflict),
        tag="keys",
    ),
    Route(
        method="GET",
        path="/v1/keys",
        verb="list_keys",
        summary="The tenant's API keys, without their secrets",
        need=_ADMIN,
        handler=list_keys,
        query=Empty,
        replies=((JSON, KeyList),),
        tag="keys",
    ),
    Route(
        method="DELETE",
        path="/v1/keys/{key}",
        verb="revoke_key",
        summary="Revoke an API key",
        need=_ADMIN,
        handler=revoke_key,
        query=Empty,
        status=204,
        errors=(NotFound,),
        tag="keys",
    ),
)
