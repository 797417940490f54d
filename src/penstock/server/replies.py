"""Replies: values as JSON or MessagePack, bytes as they are, streams, problems."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from penstock.errors import MethodNotAllowed, PenstockError, Unauthenticated
from penstock.model.delivery import LogPage, MessageDeliveries, Page
from penstock.server.head import ends_connection
from penstock.wire.bodies import ClaimReply
from penstock.wire.codecs import JSON, MSGPACK, PROBLEM_JSON, encode_json, encode_msgpack
from penstock.wire.payloads import shown_claims, shown_log, shown_message, shown_page
from penstock.wire.problems import Problem, retry_after_s, to_problem

__all__ = ["Plain", "Send", "Streamed", "encode", "problem_reply", "send_plain", "send_streamed"]

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

REQUEST_ID: Final = b"penstock-request-id"

#: Values whose JSON shows payloads in a form of their own.
_SHOWN: Final[dict[type, Callable[[Any], object]]] = {
    ClaimReply: shown_claims,
    Page: shown_page,
    LogPage: shown_log,
    MessageDeliveries: shown_message,
}


class Plain(Struct, frozen=True):
    """A reply that is bytes already."""

    status: int
    body: bytes = b""
    content_type: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Streamed(Struct, frozen=True):
    """A reply that comes in parts, for as long as the caller listens."""

    content_type: str
    parts: AsyncIterator[bytes]


def encode(value: object, status: int, *, as_msgpack: bool) -> Plain:
    """The value as the caller wants to read it; None is no content."""
    if value is None:
        return Plain(204)
    if as_msgpack:
        return Plain(status, encode_msgpack(value), MSGPACK)
    shown = _SHOWN.get(type(value))
    return Plain(status, encode_json(value if shown is None else shown(value)), JSON)


def problem_reply(error: PenstockError, request_id: str, problem: Problem | None = None) -> Plain:
    """The error as a problem document, with the headers that belong to it."""
    headers: Headers = []
    seconds = retry_after_s(error)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b'Bearer realm="penstock"'))
    if isinstance(error, MethodNotAllowed) and isinstance(error.limit, str):
        headers.append((b"allow", error.limit.encode()))
    if ends_connection(error):
        headers.append((b"connection", b"close"))
    document = to_problem(error, request_id) if problem is None else problem
    return Plain(error.status, encode_json(document), PROBLEM_JSON, tuple(headers))


async def send_plain(send: Send, reply: Plain, request_id: str) -> None:
    """Send a reply in one piece."""
    headers: Headers = [(REQUEST_ID, request_id.encode())]
    if reply.status != 204:
        headers.append((b"content-length", b"%d" % len(reply.body)))
    if reply.content_type is not None:
        headers.append((b"content-type", reply.content_type.encode()))
    if reply.headers:
        headers += reply.headers
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def send_streamed(send: Send, reply: Streamed, request_id: str) -> None:
    """Send a reply part by part."""
    headers: Headers = [
        (REQUEST_ID, request_id.encode()),
        (b"content-type", reply.content_type.encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for part in reply.parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
