"""Who the caller is: its tenant and grants, so that an interface offers only what it may do."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.server.call import Call
from penstock.server.routing import ANY_NAME, Empty, Need, Route
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]


class Caller(Struct, frozen=True):
    """The caller's credential, without its secret."""

    tenant: str
    name: str
    grants: tuple[str, ...]
    expires_at: int | None
    auth: bool
    """Whether the server asks for credentials; without, every caller may do anything."""
    operator: bool
    """Whether the caller may do what concerns every tenant."""


async def get_credential(call: Call, query: Empty, body: Empty) -> Caller:  # noqa: ARG001
    """The caller's own credential."""
    own = call.credential
    return Caller(
        own.tenant,
        own.name,
        tuple(str(grant) for grant in own.grants),
        own.expires_at,
        call.service.access.enabled,
        own.is_operator,
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/credential",
        verb="get_credential",
        summary="The caller's tenant and grants",
        need=Need("publish", ANY_NAME, or_read=True),
        handler=get_credential,
        query=Empty,
        replies=((JSON, Caller),),
        tag="keys",
    ),
)
