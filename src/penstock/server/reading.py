"""Reading a request: its body within bounds, its query and its body as typed values (E1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from penstock.errors import BadInput, Busy, SlowRequest, TooLarge, UnsupportedMedia
from penstock.server.patience import Patience
from penstock.wire.codecs import JSON, MSGPACK_ALIASES, Codec, refused

__all__ = [
    "Bodies",
    "Body",
    "ConvertedBody",
    "Disconnected",
    "RawBody",
    "Receive",
    "drop_rest",
    "read_query",
]

B = TypeVar("B")
Q = TypeVar("Q", bound=Struct)
W = TypeVar("W")

#: ASGI's own shapes.
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]

_QUERY_FIELDS: Final = 32
#: Most callers stop sending when they see the reply; those who do not are cut.
_DROP_S: Final = 1.0
_MAX_DIGITS: Final = 18


class Disconnected(Exception):
    """The caller went away; there is nobody to answer."""


async def drop_rest(receive: Receive) -> None:
    """Take the rest of a body that was refused, for a moment, after the reply was sent.

    The HTTP server ends a connection as soon as a call is over whose body it has not seen the
    end of, at times before it has written the reply; and a caller who is still sending does
    not look for one.
    """
    try:
        async with asyncio.timeout(_DROP_S):
            while (event := await receive())["type"] == "http.request":
                if not event.get("more_body", False):
                    return
    except TimeoutError:
        pass


class Bodies:
    """Reads bodies: each bounded in size and time, all of them together in memory."""

    def __init__(self, *, body_bytes: int, total_bytes: int, timeout_s: float) -> None:
        self._body_bytes = body_bytes
        self._total_bytes = total_bytes
        self._timeout_s = timeout_s
        self._patience = Patience(timeout_s)
        self._held = 0

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
        """The whole body."""
        length = headers.get(b"content-length")
        if length is None:
            if b"transfer-encoding" not in headers and b"content-type" not in headers:
                return b""
            expected = -1
        else:
            expected = self._length(length)
            if not expected:
                return b""
        try:
            event = await self._patience.bear(receive())
            if event["type"] != "http.request":
                raise Disconnected
            body: bytes = event.get("body", b"")
            # The server says that there is more until it has seen the end; a body that is as
            # long as it was announced needs no second look, which is another trip between two
            # threads.
            if len(body) == expected:
                return body
            if event.get("more_body", False):
                return await self._patience.bear(self._read_on(receive, body, expected))
            if len(body) > self._body_bytes:
                raise self._too_large()
            return body
        except TimeoutError as error:
            raise SlowRequest(
                f"The body took longer than {self._timeout_s:g} s to arrive.", field="body"
            ) from error

    async def _read_on(self, receive: Receive, first: bytes, expected: int) -> bytes:
        parts = [first]
        size = len(first)
        self._held += size
        try:
            while True:
                if size > self._body_bytes:
                    raise self._too_large()
                if self._held > self._total_bytes:
                    raise Busy("Too many large requests are under way.", field="body")
                if size == expected:
                    return b"".join(parts)
                event = await receive()
                if event["type"] != "http.request":
                    raise Disconnected
                part: bytes = event.get("body", b"")
                parts.append(part)
                size += len(part)
                self._held += len(part)
                if not event.get("more_body", False):
                    expected = size
        finally:
            self._held -= size

    def _length(self, text: bytes) -> int:
        if not text.isdigit():
            raise BadInput("Content-Length is not a number.", field="Content-Length")
        if len(text) > _MAX_DIGITS or int(text) > self._body_bytes:
            raise self._too_large()
        return int(text)

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"The body is over the limit of {self._body_bytes} bytes.",
            field="body",
            limit=self._body_bytes,
        )


class Body(Generic[B]):
    """How a body is read: the same type from JSON and from MessagePack."""

    def __init__(
        self, kind: type[B], *, required: bool = True, json_kind: type | None = None
    ) -> None:
        self.kind = kind
        self.json_kind: type = kind if json_kind is None else json_kind
        self.required = required
        self._codec = Codec(kind)

    def decode(self, body: bytes, media: str) -> B:
        """The value, by the type that the request declares."""
        if not body and not self.required:
            return self.kind()
        if media == JSON or not media:
            return self.from_json(body)
        if media in MSGPACK_ALIASES:
            return self._codec.from_msgpack(body)
        raise UnsupportedMedia(f"A body of type {media!r} is not read here.", field="Content-Type")

    def from_json(self, body: bytes) -> B:
        """The value of a JSON body."""
        return self._codec.from_json(body)


class ConvertedBody(Body[B], Generic[B, W]):
    """A body whose JSON has a shape of its own, from which the value is made."""

    def __init__(self, kind: type[B], json_kind: type[W], convert: Callable[[W], B]) -> None:
        super().__init__(kind, json_kind=json_kind)
        self._json = Codec(json_kind)
        self._convert = convert

    def from_json(self, body: bytes) -> B:
        """The value of a JSON body."""
        return self._convert(self._json.from_json(body))


class RawBody(Body[bytes]):
    """A body that is handed to its route as it came."""

    def __init__(self) -> None:
        super().__init__(bytes, required=False)


def read_query(kind: type[Q], query_string: bytes) -> Q:
    """The query parameters as a struct; unknown ones are refused."""
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
        raise refused(error, "The query") from error
