"""The native door as a door: finds the route, and decodes and encodes its bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.errors import NotAcceptable, PenstockError
from penstock.server.access import ANYBODY, Credential
from penstock.server.call import Call
from penstock.server.decoding import DIRECT_BYTES
from penstock.server.doors.door import Door
from penstock.server.replies import (
    SMALL_BYTES,
    Plain,
    Reply,
    Streamed,
    encode,
    headers_bytes,
    problem_reply,
)
from penstock.server.request_parsing import read_query
from penstock.server.routing import AnyRoute, Empty, Routes
from penstock.wire.codecs import MSGPACK_ALIASES, media_type

__all__ = ["NativeDoor"]

_EMPTY: Final = Empty()
#: Accept headers that are answered with MessagePack or JSON without parsing them.
_MSGPACK: Final = frozenset(kind.encode() for kind in MSGPACK_ALIASES)
_ANY: Final = frozenset({b"", b"*/*", b"application/json", b"application/*"})


class NativeDoor(Door):
    """Penstock's own HTTP interface. It takes every request that no other door takes."""

    name = "native"

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self.routes = Routes(routes)

    def takes(self, call: Call) -> bool:  # noqa: ARG002
        """Yes: it is the last one to be asked."""
        return True

    def find(self, call: Call) -> None:
        """Find the route; raises ``UnknownRoute`` or ``MethodNotAllowed``."""
        route, call.parameters = self.routes.find(call.method, call.path)
        call.route = route
        call.verb = route.verb
        call.claims = route.claims

    async def authenticate(self, call: Call) -> Credential:
        """The credential of the Authorization header, or anybody's if the route is open."""
        if call.route.need.action is None:
            return ANYBODY
        access = call.service.access
        authorization = call.headers.get(b"authorization")
        return access.recall(authorization) or await access.authenticate(authorization)

    async def answer(self, call: Call) -> Reply:
        """Check the grant, decode, call the handler, encode."""
        route = call.route
        call.check_need(route.need)
        as_msgpack = _wants_msgpack(call.headers.get(b"accept", b""), route)
        query = None if call.query_string else route.no_query
        if query is None:
            query = read_query(route.query, call.query_string)
        body: object = _EMPTY
        if route.body is not None:
            raw = await call.read_body(route.body.most)
            if route.is_raw:
                body = raw
            elif len(raw) <= DIRECT_BYTES:
                body = route.body.decode(raw, call.media)
            else:
                # The decoded body is about as large as the raw one.
                call.hold.add(len(raw))
                body = await route.body.decode_large(raw, call.media, call.service.payload_bytes)
        value = await route.handler(call, query, body)
        if type(value) is Plain or type(value) is Streamed:
            return value
        # A read can be refused still; the result of a claim or a publish must be sent.
        if route.method != "GET":
            return await encode(value, route.status, as_msgpack=as_msgpack)
        hold = call.hold
        if size := headers_bytes(value):
            hold.take(size)
        reply = await encode(value, route.status, as_msgpack=as_msgpack, turn=call.turn)
        if reply.size > max(hold.size, SMALL_BYTES):
            hold.take(reply.size - hold.size)
        return reply

    def refuse(self, call: Call, error: PenstockError) -> Plain:
        """A problem document."""
        return problem_reply(error, call.request_id)


def _wants_msgpack(accept: bytes, route: AnyRoute) -> bool:
    """Whether the reply is MessagePack; raises ``NotAcceptable`` if no accepted type fits."""
    if accept in _ANY:
        return False
    if accept in _MSGPACK:
        return True
    kinds = [media_type(item) for item in accept.decode("latin-1").split(",")]
    for kind in kinds:
        if kind in MSGPACK_ALIASES:
            return True
        if kind in {"*/*", "application/*", "application/json", "application/problem+json"}:
            return False
    own = {content_type for content_type, _ in route.replies}
    if own and any(kind in own or kind.endswith("/*") for kind in kinds):
        return False
    raise NotAcceptable(f"No reply type matches {accept[:200]!r}.", field="Accept")
