"""Request heads: a strict parser (RFC 9112).

A proxy in front of the server may read an ambiguous head differently, and then the two disagree
about where the next request begins. So a head that the grammar does not allow is refused, also
where the RFC lets a server be lenient: a line that ends in a bare LF, a folded header, a second
``Content-Length``, a length together with chunks.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from penstock.errors import BadInput

__all__ = ["CHUNKED", "RequestHead", "check_partial", "parse_head"]

#: The length of a body that comes in chunks.
CHUNKED: Final = -1
#: More digits than any body that the server takes.
_MAX_DIGITS: Final = 18
#: Splitting 60,000 short lines would block the event loop for 90 ms.
_MAX_HEADERS: Final = 256
#: Heads up to this size are cached.
_SHORT_BYTES: Final = 512

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([!-\"$-~]+) HTTP/1\.([01])")
_VERSION: Final = re.compile(rb"\S+ \S+ HTTP/\d\.\d")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?]+)(.*)", re.IGNORECASE)
_is_token: Final = re.compile(_TOKEN).fullmatch
#: Not allowed anywhere in a head.
_CONTROLS: Final = bytes(range(9)) + b"\x0b\x0c" + bytes(range(14, 32)) + b"\x7f"
#: Allowed only as CR LF at the end of a line.
_CONTROLS_AND_ENDS: Final = _CONTROLS + b"\r\n"
#: The headers that decide about the connection, and about where the request ends.
_FRAMING: Final = frozenset({b"connection", b"content-length", b"expect", b"transfer-encoding"})


class RequestHead(Struct, frozen=True, gc=False):
    """A request line and its headers; the names of headers are in lower case."""

    method: str
    target: bytes
    path: str
    """Decoded."""
    query: bytes
    version: str
    headers: tuple[tuple[bytes, bytes], ...]
    length: int
    """Of the body; 0 if there is none, ``CHUNKED`` if only its chunks tell."""
    keeps_alive: bool
    """Whether the caller may send another request on the connection."""
    expects_continue: bool
    """Whether the caller waits for a 100 before it sends the body."""


class _Framing(Struct):
    length: int | None = None
    chunked: bool = False
    connection: bytes = b""
    expects_continue: bool = False


def parse_head(head: bytes) -> RequestHead:
    """Parse a head, given without the empty line at its end; raises ``BadInput``.

    The result may be shared: a caller's heads are often identical, byte for byte.
    """
    return _parse_short(head) if len(head) <= _SHORT_BYTES else _parse(head)


def _parse(head: bytes) -> RequestHead:
    lines = head.split(b"\r\n", _MAX_HEADERS + 1)
    if len(lines) > _MAX_HEADERS + 1:
        raise _refusal(f"has more than {_MAX_HEADERS} headers")
    if len(head.translate(None, _CONTROLS_AND_ENDS)) != len(head) - 2 * len(lines) + 2:
        raise _refusal("has a control character, or a line that does not end in CR LF")
    found = _REQUEST_LINE.fullmatch(lines[0])
    if found is None:
        if _VERSION.fullmatch(lines[0]) is not None:
            raise _refusal("is not HTTP/1.0 or HTTP/1.1")
        raise _refusal("does not begin with a method, a target and a version")
    method, target, minor = found.groups()
    headers: list[tuple[bytes, bytes]] = []
    framing: _Framing | None = None
    del lines[0]
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _is_token(name) is None:
            raise _refusal("has a line that is not a header")
        name = name.lower()
        value = value.strip(b" \t")
        headers.append((name, value))
        if name in _FRAMING:
            framing = framing or _Framing()
            _take_framing(framing, name, value)
    is_old = minor == b"0"
    path, query = _split(target, headers)
    if framing is None:
        version = "1.0" if is_old else "1.1"
        return RequestHead(
            method.decode(), target, path, query, version, tuple(headers), 0, not is_old, False
        )
    return RequestHead(
        method.decode(),
        target,
        path,
        query,
        "1.0" if is_old else "1.1",
        tuple(headers),
        _length(framing, is_old=is_old),
        _keeps_alive(framing.connection, is_old=is_old),
        framing.expects_continue and not is_old,
    )


#: 7 µs to parse a head become 0.5. At most 10 MiB.
_parse_short = lru_cache(maxsize=1024)(_parse)


def check_partial(before: bytes, part: bytes) -> None:
    """Raise ``BadInput`` if no head can go on like this.

    ``part`` arrived after ``before``, and the end of the head is still missing. Without this
    check a head with bare LFs, or a TLS handshake, would be answered by its timeout.
    """
    if before.endswith(b"\r"):
        part = b"\r" + part
    if len(part.translate(None, _CONTROLS)) != len(part) or (
        part.count(b"\n") != part.count(b"\r\n")
    ):
        raise _refusal("has a control character, or a line that does not end in CR LF")


def _refusal(what: str, field: str = "head") -> BadInput:
    return BadInput(f"The head of the request {what}.", field=field)


def _take_framing(framing: _Framing, name: bytes, value: bytes) -> None:
    if name == b"content-length":
        if framing.length is not None:
            raise _refusal("has two Content-Length headers", "Content-Length")
        # bytes.isdigit accepts ASCII digits only.
        if not value.isdigit():
            raise BadInput("Content-Length is not a number.", field="Content-Length")
        framing.length = int(value) if len(value) <= _MAX_DIGITS else 10**_MAX_DIGITS
    elif name == b"transfer-encoding":
        if framing.chunked:
            raise _refusal("has two Transfer-Encoding headers", "Transfer-Encoding")
        if value.lower() != b"chunked":
            raise BadInput(
                "The only Transfer-Encoding allowed is chunked.", field="Transfer-Encoding"
            )
        framing.chunked = True
    elif name == b"connection":
        framing.connection += b"," + value.lower()
    else:
        framing.expects_continue = value.lower() == b"100-continue"


def _length(framing: _Framing, *, is_old: bool) -> int:
    if not framing.chunked:
        return framing.length or 0
    if framing.length is not None:
        raise _refusal("has both Transfer-Encoding and Content-Length", "Transfer-Encoding")
    if is_old:
        raise _refusal("has a Transfer-Encoding in HTTP/1.0", "Transfer-Encoding")
    return CHUNKED


def _keeps_alive(connection: bytes, *, is_old: bool) -> bool:
    tokens = [token.strip() for token in connection.split(b",")]
    return b"close" not in tokens and (not is_old or b"keep-alive" in tokens)


def _split(target: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[str, bytes]:
    """The decoded path and the query."""
    if not target.startswith(b"/") and target != b"*":
        target = _origin_form(target, headers)
    raw, _, query = target.partition(b"?")
    if b"%" in raw:
        return unquote_to_bytes(raw).decode(errors="replace"), query
    return raw.decode(), query


def _origin_form(target: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The path and query of a target that is a whole URL, as clients send it to a proxy."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise _refusal("has a target that is not a path")
    host, path = found.groups()
    # The authority would override Host, which the application checks.
    if any(name == b"host" and value.lower() != host.lower() for name, value in headers):
        raise _refusal("has a target whose authority differs from Host", "Host")
    return path if path.startswith(b"/") else b"/" + path
