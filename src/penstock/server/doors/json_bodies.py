"""JSON bodies, replies and times of the doors whose errors are ``{"error": "..."}``."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from penstock.errors import BadInput, PenstockError, Unauthenticated, UnsupportedMedia
from penstock.model.limits import MAX_TIME_MS, shown
from penstock.server.call import Call
from penstock.server.doors.json_values import check_values
from penstock.server.head import ends_connection
from penstock.server.replies import Plain
from penstock.server.request_parsing import SMALL_BYTES
from penstock.wire.codecs import JSON
from penstock.wire.problems import retry_after_s

__all__ = [
    "SMALL_BYTES",
    "ErrorBody",
    "StatusError",
    "as_text",
    "decode_json",
    "json_error",
    "json_reply",
    "query_of",
    "read_json",
    "read_typed_json",
    "rfc3339",
    "to_ms",
    "whole_number",
]

T = TypeVar("T")

_MAX_FIELDS: Final = 32
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_encode: Final = msgspec.json.Encoder().encode


class ErrorBody(Struct, frozen=True):
    """The body of an error."""

    error: str


class StatusError(BadInput):
    """A refusal that the protocol itself defines, with its status and text.

    Metrics count it as bad input.
    """

    title = "The protocol refuses the call"
    advice = "See the page of the door."

    def __init__(self, status: int, text: str, *, field: str | None = None) -> None:
        super().__init__(text, field=field)
        self.code = status
        self.text = text


def json_reply(
    value: object, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Plain:
    """A value as JSON."""
    return Plain(status, _encode(value), JSON, headers)


def json_error(
    status: int, text: str, error: PenstockError, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Plain:
    """An error in the form of these doors, with the HTTP headers that belong to it."""
    seconds = retry_after_s(error)
    if seconds is not None:
        headers += ((b"retry-after", b"%d" % seconds),)
    if isinstance(error, Unauthenticated):
        headers += ((b"www-authenticate", b'Bearer realm="penstock"'),)
    if ends_connection(error):
        headers += ((b"connection", b"close"),)
    return json_reply(ErrorBody(text), status, headers)


async def read_json(
    call: Call, kind: type[T], most: int = SMALL_BYTES, opaque: AbstractSet[str] = frozenset()
) -> T:
    """The body of a call, decoded; raises ``BadInput``, also for a body of very many values.

    The values inside members whose names are ``opaque``, which are kept undecoded, do not count.
    """
    # A body of more than 4 MiB arrives as another type of buffer.
    body = bytes(await call.read_body(most))
    await check_values(body, opaque)
    return decode_json(body, kind)


async def read_typed_json(call: Call, kind: type[T], most: int = SMALL_BYTES) -> T:
    """The same for a protocol that refuses bodies of another content type."""
    if call.media != JSON:
        raise UnsupportedMedia(f"The body must be {JSON}.", field="Content-Type")
    return await read_json(call, kind, most)


def query_of(call: Call) -> dict[str, str]:
    """The parameters of the URL, the last of each name."""
    try:
        pairs = parse_qsl(
            call.query_string.decode("latin-1"),
            keep_blank_values=True,
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError as error:
        raise BadInput(f"The URL has more than {_MAX_FIELDS} parameters.", field="query") from error
    return dict(pairs)


def decode_json(raw: bytes, kind: type[T]) -> T:
    """Decode JSON; raises ``BadInput``, also for bodies that are nested too deeply."""
    try:
        # A part that is kept raw would not be checked otherwise.
        raw.decode()
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
        raise BadInput(f"The body cannot be read: {error}.", field="body") from error


def as_text(payload: bytes) -> str:
    """A payload as text; bytes that are not UTF-8 become replacement characters."""
    return payload.decode(errors="replace")


def rfc3339(at_ms: int) -> str:
    """A time in epoch milliseconds, as text in UTC."""
    moment = _EPOCH + timedelta(milliseconds=at_ms)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def to_ms(text: str, field: str) -> int:
    """A time of RFC 3339 in epoch milliseconds; raises ``BadInput``."""
    try:
        moment = msgspec.json.decode(_encode(text), type=datetime)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadInput(f"{field} is {shown(text)}; it must be a time.", field=field) from error
    if moment.tzinfo is None:
        raise BadInput(f"{field} is {shown(text)}; it has no time zone.", field=field)
    try:
        at_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    except OverflowError:
        at_ms = -1
    if not 0 <= at_ms <= MAX_TIME_MS:
        raise BadInput(f"{field} is {shown(text)}; it is out of range.", field=field)
    return at_ms


def whole_number(text: str | None) -> int | None:
    """A number in a query, of at most 15 digits; None if it is none."""
    digits = (text or "").removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 15:
        return None
    return int(text or "0")
