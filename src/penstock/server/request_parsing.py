"""Reading a request: its body within limits, query and body as typed values (E1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from mmap import mmap
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from penstock.errors import BadInput, SlowRequest, TooLarge
from penstock.server.budget import Hold
from penstock.server.decoding import Lists, format_of
from penstock.storage.timeouts import Timeouts
from penstock.wire.codecs import Codec, refused
from penstock.wire.splitting import Bounds

__all__ = [
    "SMALL_BYTES",
    "Bodies",
    "Body",
    "ConvertedBody",
    "Disconnected",
    "Incomplete",
    "ListBody",
    "RawBody",
    "Receive",
    "read_query",
]

B = TypeVar("B")
Q = TypeVar("Q", bound=Struct)
S = TypeVar("S", bound=Struct)
W = TypeVar("W")

#: ASGI's own types.
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]

_QUERY_FIELDS: Final = 32
_MAX_DIGITS: Final = 18
#: Bytes of a body that are copied in one step.
_JOIN_BYTES: Final = 4 * 1024 * 1024
#: The limit for a body without long lists.
SMALL_BYTES: Final = 128 * 1024
_NUMBERS_A_PIECE: Final = 10_000


class Disconnected(Exception):
    """The caller disconnected; no reply can be sent."""


class Incomplete(Disconnected):
    """The body ended early: the caller disconnected, or the HTTP server could not read it."""


class Bodies:
    """Reads bodies, limiting the size and time of each, and their total by the memory budget."""

    def __init__(self, *, body_bytes: int, timeout_s: float) -> None:
        self._body_bytes = body_bytes
        self._timeout_s = timeout_s
        self.timeouts = Timeouts(timeout_s)

    async def read(
        self,
        receive: Receive,
        headers: Mapping[bytes, bytes],
        hold: Hold,
        most: int | None = None,
    ) -> bytes:
        """Read the whole body, charging it to the budget from its first byte on.

        ``most`` is the limit of this call, if lower than the server's.
        """
        most = self._body_bytes if most is None else min(most, self._body_bytes)
        length = headers.get(b"content-length")
        if length is None:
            if b"transfer-encoding" not in headers and b"content-type" not in headers:
                return b""
            expected = -1
        else:
            expected = _length(length, most)
            if not expected:
                return b""
        try:
            event = await self.timeouts.run(receive())
            if event["type"] != "http.request":
                raise Incomplete
            body: bytes = event.get("body", b"")
            hold.take(len(body))
            if event.get("more_body", False):
                return await self.timeouts.run(self._read_on(receive, body, expected, hold, most))
            if len(body) > most:
                raise _too_large(most)
            return body
        except TimeoutError as error:
            raise SlowRequest(
                f"The body took longer than {self._timeout_s:g} s to arrive.", field="body"
            ) from error

    async def _read_on(
        self, receive: Receive, first: bytes, expected: int, hold: Hold, most: int
    ) -> bytes:
        parts = [first]
        size = len(first)
        while True:
            if size > most:
                raise _too_large(most)
            if size == expected:
                return await _joined(parts, size)
            event = await receive()
            if event["type"] != "http.request":
                raise Incomplete
            part: bytes = event.get("body", b"")
            hold.take(len(part))
            parts.append(part)
            size += len(part)
            if not event.get("more_body", False):
                expected = size


async def _joined(parts: list[bytes], size: int) -> bytes:
    """The parts in one buffer; a large one is filled in steps.

    Copying 64 MiB into fresh memory takes forty milliseconds, and a bytearray of that size as
    long just to be zeroed. An anonymous mmap costs nothing until its pages are written.
    """
    if size <= _JOIN_BYTES:
        return b"".join(parts)
    whole = mmap(-1, size)
    position = stepped = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        whole[position : position + len(part)] = part
        position += len(part)
        if position - stepped > _JOIN_BYTES:
            stepped = position
            await asyncio.sleep(0)
    # Callers only use it like bytes: index, slice, find and buffer protocol.
    return cast("bytes", whole)


def _length(text: bytes, most: int) -> int:
    if not text.isdigit():
        raise BadInput("Content-Length is not a number.", field="Content-Length")
    if len(text) > _MAX_DIGITS or int(text) > most:
        raise _too_large(most)
    return int(text)


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"The body is over the limit of {most} bytes.", field="body", limit=most)


class Body(Generic[B]):
    """How to decode a body: the same type from JSON and from MessagePack."""

    def __init__(
        self,
        kind: type[B],
        *,
        required: bool = True,
        json_kind: type | None = None,
        most: int | None = SMALL_BYTES,
    ) -> None:
        self.kind = kind
        self.most = most
        """The size limit of this call; None: the server's."""
        self.json_kind: type = kind if json_kind is None else json_kind
        self.required = required
        self._codec = Codec(kind)

    def decode(self, body: bytes, media: str) -> B:
        """Decode the body by the content type that the request declares."""
        if not body and not self.required:
            return self.kind()
        if format_of(media).is_json:
            return self.from_json(body)
        return self._codec.from_msgpack(body)

    async def decode_large(self, body: bytes, media: str, payload_bytes: int) -> B:  # noqa: ARG002
        """Decode a body above ``DIRECT_BYTES`` without blocking the event loop for long."""
        return self.decode(body, media)

    def from_json(self, body: bytes) -> B:
        """The value of a JSON body."""
        return self._codec.from_json(body)


class ConvertedBody(Body[B], Generic[B, W]):
    """A body whose JSON form has another type, which is converted to the value."""

    def __init__(self, kind: type[B], json_kind: type[W], convert: Callable[[W], B]) -> None:
        super().__init__(kind, json_kind=json_kind, most=None)
        self._json = Codec(json_kind)
        self._convert = convert

    def from_json(self, body: bytes) -> B:
        """The value of a JSON body."""
        return self._convert(self._json.from_json(body))


class RawBody(Body[bytes]):
    """A body that its route receives undecoded."""

    def __init__(self) -> None:
        super().__init__(bytes, required=False, most=None)


class ListBody(Body[S]):
    """A body with one long list of numbers."""

    def __init__(self, kind: type[S], name: str, items: int, *, required: bool = True) -> None:
        # A number has at most twenty digits, plus separators.
        super().__init__(kind, required=required, most=22 * items + SMALL_BYTES)
        bounds = Bounds(items, piece_items=_NUMBERS_A_PIECE, large_member="")
        self._bounds = {name: bounds}
        self._lists = Lists(kind, {name: int})

    async def decode_large(self, body: bytes, media: str, payload_bytes: int) -> S:  # noqa: ARG002
        """Decode the value, its list in pieces."""
        return await self._lists.decode(format_of(media), body, self._bounds)


def read_query(kind: type[Q], query_string: bytes) -> Q:
    """The query parameters as a struct; raises ``BadInput`` for unknown ones."""
    if not query_string:
        pairs: dict[str, str] = {}
    else:
        try:
            items = parse_qsl(
                query_string.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
                max_num_fields=_QUERY_FIELDS,
            )
        except ValueError as error:
            raise BadInput("The query string cannot be read.", field="query") from error
        pairs = dict(items)
        if len(pairs) != len(items):
            raise BadInput("A query parameter is given twice.", field="query")
    try:
        return msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refused(error, kind, "The query") from error
