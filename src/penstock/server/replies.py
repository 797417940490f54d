"""Replies: values as JSON or MessagePack, raw bytes, streams, problems.

A small reply is given to the HTTP server in one piece. A large one is encoded and sent in parts.
The HTTP server accepts a part only when the caller has read those before it, so unread data stays
here, where the budget counts it. A caller that reads nothing for too long is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import MethodNotAllowed, PenstockError, Unauthenticated
from penstock.model.delivery import LogPage, MessageDeliveries, Page, SettleAndClaimReply
from penstock.model.message import HeaderValue
from penstock.server.budget import Hold
from penstock.server.head import ends_connection
from penstock.server.request_parsing import Disconnected
from penstock.storage.timeouts import Timeouts
from penstock.wire.bodies import ClaimReply
from penstock.wire.codecs import JSON, MSGPACK, PROBLEM_JSON, encode_json, encode_msgpack
from penstock.wire.msgpack_cursor import array_header, array_items
from penstock.wire.payloads import (
    shown_claims,
    shown_log,
    shown_message,
    shown_page,
    shown_settle_and_claim,
)
from penstock.wire.problems import Problem, retry_after_s, to_problem

__all__ = [
    "SMALL_BYTES",
    "Plain",
    "Reply",
    "Send",
    "Streamed",
    "Unread",
    "encode",
    "header_bytes",
    "headers_bytes",
    "pieces",
    "problem_reply",
    "send_plain",
    "send_streamed",
]

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

REQUEST_ID: Final = b"penstock-request-id"
#: Replies up to this size are sent in one piece.
SMALL_BYTES: Final = 64 * 1024
#: Bytes encoded per step and sent per part; a single payload may be larger.
PART_BYTES: Final = 256 * 1024

#: Items that are encoded in one turn: each has up to 16 KiB of headers beside its payload.
_PIECE_ITEMS: Final = 100
#: What a header takes in memory beside its text.
_HEADER_BYTES: Final = 150
_FIELDS_BYTES: Final = PART_BYTES // _PIECE_ITEMS

#: Values whose JSON has a special form for payloads.
_SHOWN: Final[dict[type, Callable[[Any], object]]] = {
    ClaimReply: shown_claims,
    SettleAndClaimReply: shown_settle_and_claim,
    Page: shown_page,
    LogPage: shown_log,
    MessageDeliveries: shown_message,
}
#: Values that may contain many payloads, and their first field, a list.
_LISTS: Final[dict[type, str]] = {
    ClaimReply: "deliveries",
    SettleAndClaimReply: "deliveries",
    Page: "items",
    LogPage: "entries",
}


class Unread(Exception):
    """The caller read nothing of its reply for too long."""


class Plain(Struct, frozen=True):
    """A reply whose bytes are complete, in one piece or several."""

    status: int
    body: bytes | list[bytes] = b""
    content_type: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def size(self) -> int:
        """The size of the body in bytes."""
        if isinstance(self.body, bytes):
            return len(self.body)
        return sum(len(part) for part in self.body)


class Streamed(Struct, frozen=True):
    """A reply that is produced in parts for as long as the caller stays connected."""

    content_type: str
    parts: AsyncGenerator[bytes, None]


#: The reply to a call.
Reply: TypeAlias = Plain | Streamed


async def _next() -> None:
    await asyncio.sleep(0)


async def encode(
    value: object, status: int, *, as_msgpack: bool, turn: Callable[[], Awaitable[None]] = _next
) -> Plain:
    """Encode a value in the format that the caller accepts; None is no content.

    A long list is encoded in parts, with ``turn`` awaited between them.
    """
    if value is None:
        return Plain(204)
    name = _LISTS.get(type(value))
    if name is not None:
        items = getattr(value, name)
        if len(items) > _PIECE_ITEMS or (
            len(items) > 1 and sum(map(_payload_bytes, items)) > PART_BYTES
        ):
            return await _encode_list(value, name, items, status, turn, as_msgpack=as_msgpack)
    if as_msgpack:
        return Plain(status, encode_msgpack(value), MSGPACK)
    shown = _SHOWN.get(type(value))
    return Plain(status, encode_json(value if shown is None else shown(value)), JSON)


async def _encode_list(
    value: Any,
    name: str,
    items: Sequence[Any],
    status: int,
    turn: Callable[[], Awaitable[None]],
    *,
    as_msgpack: bool,
) -> Plain:
    """Encode a value whose first field is a long list, some items per step."""
    empty = type(items)()
    frame = (encode_msgpack if as_msgpack else encode_json)(replace(value, **{name: empty}))
    # The list is the first field, so the first empty list in the frame is where items go.
    before, _, after = frame.partition(b"\x90" if as_msgpack else b"[]")
    body = [before + (array_header(len(items)) if as_msgpack else b"[")]
    # An allowance for the other fields of an item.
    sizes = [_payload_bytes(item) + _FIELDS_BYTES for item in items]
    for begin, end in pieces(sizes, PART_BYTES):
        part = items[begin:end]
        if as_msgpack:
            # Not item by item: a socket that is written to in small pieces fills the caller's
            # receive buffer with overhead, and stalls.
            body.append(array_items(encode_msgpack(part)))
        else:
            shown: Any = _SHOWN[type(value)](replace(value, **{name: part}))
            body.append(encode_json(getattr(shown, name))[1:-1])
            body.append(b",")
        await turn()
    if not as_msgpack:
        body[-1] = b"]"
    body.append(after)
    return Plain(status, body, MSGPACK if as_msgpack else JSON)


def headers_bytes(value: object) -> int:
    """About what the headers of a list of messages take, which is counted before it is encoded."""
    name = _LISTS.get(type(value))
    if name is None:
        return 0
    return sum(
        header_bytes(headers) for item in getattr(value, name) if (headers := item.message.headers)
    )


def header_bytes(headers: Mapping[str, HeaderValue]) -> int:
    """About what the headers of one message take."""
    names = sum(map(len, headers)) + _HEADER_BYTES * len(headers)
    try:
        # A fifth of the time, if all values are text: 1,000 messages may have 64,000.
        return names + sum(map(len, headers.values()))  # type: ignore[arg-type]
    except TypeError:
        return names + sum(len(one) for one in headers.values() if type(one) is str)


def pieces(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of payloads with at most ``most`` bytes together, or of one larger payload."""
    if sum(sizes) <= most:
        yield 0, len(sizes)
        return
    begin = 0
    remaining = most
    for index, size in enumerate(sizes):
        if size > remaining and index > begin:
            yield begin, index
            begin, remaining = index, most
        remaining -= size
    yield begin, len(sizes)


def _payload_bytes(item: Any) -> int:
    return len(item.payload or b"")


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


async def send_plain(
    send: Send, reply: Plain, request_id: str, hold: Hold, timeouts: Timeouts
) -> None:
    """Send a reply whose length is known."""
    headers: Headers = [(REQUEST_ID, request_id.encode())]
    body = reply.body
    size = reply.size
    # From here on the call holds its reply and no longer its request.
    hold.set(size)
    if reply.status != 204:
        headers.append((b"content-length", b"%d" % size))
    if reply.content_type is not None:
        headers.append((b"content-type", reply.content_type.encode()))
    if reply.headers:
        headers += reply.headers
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if size > SMALL_BYTES:
        await _send_parts(send, [body] if isinstance(body, bytes) else body, hold, timeouts)
        body = b""
    elif isinstance(body, list):
        body = b"".join(body)
    await send({"type": "http.response.body", "body": body})


async def _send_parts(send: Send, body: list[bytes], hold: Hold, timeouts: Timeouts) -> None:
    """Send a large reply; each part is released as soon as the HTTP server has accepted it."""
    body.reverse()
    while body:
        piece = body.pop()
        for begin in range(0, len(piece), PART_BYTES):
            await _send_part(send, piece[begin : begin + PART_BYTES], timeouts)
        hold.add(-len(piece))


async def _send_part(send: Send, part: bytes, timeouts: Timeouts) -> None:
    event = {"type": "http.response.body", "body": part, "more_body": True}
    try:
        await timeouts.run(send(event))
    except TimeoutError as error:
        raise Unread from error
    except OSError as error:
        raise Disconnected from error


async def send_streamed(
    send: Send, reply: Streamed, request_id: str, hold: Hold, timeouts: Timeouts
) -> None:
    """Send a reply part by part."""
    headers: Headers = [
        (REQUEST_ID, request_id.encode()),
        (b"content-type", reply.content_type.encode()),
        (b"cache-control", b"no-store"),
    ]
    async with aclosing(reply.parts) as parts:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in parts:
            hold.add(len(part))
            for begin in range(0, len(part), PART_BYTES):
                await _send_part(send, part[begin : begin + PART_BYTES], timeouts)
            hold.add(-len(part))
    await send({"type": "http.response.body", "body": b""})
