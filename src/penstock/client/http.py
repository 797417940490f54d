"""HTTP/1.1, as far as the client needs it: a parser of replies.

It reads replies of a known length, in chunks, or up to the end of the connection, and interim
replies before them. A violation of the protocol raises ``NotHttp``; the parser never guesses.
There is no compression, since the client does not ask for it.

A large body is received directly into its buffer (``remaining``), everything else with ``feed``.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.client.body import Body, Memory, plain_memory

__all__ = ["NotHttp", "Reply", "ReplyReader"]

#: A reply's status line and headers; Penstock's take about 100 bytes.
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_DIGITS: Final = 15
_MAX_RETRY_AFTER_S: Final = 3600
#: Replies without a body, regardless of their headers.
_BODILESS: Final = frozenset({204, 304})
_SWITCHING: Final = 101
#: Missing bytes of a body, or of a chunk, from which on a separate buffer pays off.
_LARGE: Final = 64 * 1024


class NotHttp(Exception):
    """The bytes are not an HTTP reply."""


class Reply(Struct, frozen=True, gc=False):
    """One reply."""

    status: int
    body: bytes | memoryview
    """In a buffer of its own, if it is large."""
    retry_after_ms: int | None = None


class ReplyReader:
    """Parses the replies of one connection."""

    __slots__ = (
        "_body",
        "_buffer",
        "_chunked",
        "_in_chunk",
        "_length",
        "_memory",
        "_missing",
        "_parts",
        "_retry_after_ms",
        "_status",
        "begun",
        "keep",
    )

    def __init__(self, memory: Memory = plain_memory) -> None:
        self._memory = memory
        self._begin()

    def _begin(self) -> None:
        self.begun = False
        """Whether a part of the reply has arrived."""
        self.keep = True
        """Whether the connection can be used for another request after this reply."""
        self._status = 0
        self._retry_after_ms: int | None = None
        #: The length of the body; None: it comes in chunks, or ends with the connection.
        self._length: int | None = None
        #: Bytes that are not parsed yet: the head, or chunks.
        self._buffer = bytearray()
        #: Whether the body comes in chunks, and whether the end of one is still missing.
        self._chunked = False
        self._in_chunk = False
        #: The body so far, as parts or in its buffer, and how much of it or of a chunk is missing.
        self._parts: list[bytes | memoryview] = []
        self._body: Body | None = None
        self._missing = 0

    def remaining(self) -> memoryview | None:
        """The buffer for the next bytes of a large body; None: pass them to ``feed``."""
        if self._missing < _LARGE:
            return None
        if self._body is None:
            self._body = Body(self._memory, self._parts)
        return self._body.remaining(self._missing)

    def filled(self, count: int) -> Reply | None:
        """Record ``count`` bytes written into the buffer; returns the reply once it is complete."""
        assert self._body is not None
        self._body.filled(count)
        self._missing -= count
        return None if self._missing or self._length is None else self._whole(keep=self.keep)

    def feed(self, data: bytes) -> Reply | None:
        """Parse the next bytes; returns the reply once it is complete."""
        self.begun = True
        if not self._status:
            self._buffer += data
            if not self._read_head():
                return None
            if self._chunked:
                return self._read_chunks(b"")
            data = bytes(self._buffer)
        elif self._chunked:
            return self._read_chunks(data)
        self._add(data)
        self._missing -= len(data)
        if self._length is None or self._missing > 0:
            return None
        # Surplus bytes were not requested, so the connection cannot be kept.
        return self._whole(keep=self.keep and not self._missing)

    def end(self) -> Reply | None:
        """Handle the end of the connection; returns the reply if that completes it."""
        if self._status and self._length is None and not self._chunked:
            return self._whole(keep=False)
        return None

    def _add(self, part: bytes | memoryview) -> None:
        if self._body is None:
            self._parts.append(part)
        else:
            self._body.add(part)

    def _whole(self, *, keep: bool) -> Reply:
        body = b"".join(self._parts) if self._body is None else self._body.whole()
        reply = Reply(self._status, body[: self._length], self._retry_after_ms)
        self._begin()
        self.keep = keep
        return reply

    # -- the head ----------------------------------------------------------------------

    def _read_head(self) -> bool:
        """Parse up to the body; returns whether the head is complete."""
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD_BYTES:
                    raise NotHttp("its header section does not end")
                if not b"HTTP/1."[: len(self._buffer)].startswith(self._buffer[:7]):
                    raise NotHttp("it does not begin like a reply")
                return False
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            status = _status(first)
            if status >= 200:
                self._status = status
                self._read_headers(lines, old=first.startswith("HTTP/1.0"))
                return True
            if status == _SWITCHING:
                raise NotHttp("it changes the protocol")
            # An interim reply: the final one follows.

    def _read_headers(self, lines: list[str], *, old: bool) -> None:
        connection = ""
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise NotHttp("a header has no value")
            match name.lower():
                case "content-length":
                    self._read_length(value.strip())
                case "transfer-encoding":
                    if value.strip().lower() != "chunked":
                        raise NotHttp("its transfer encoding is unknown")
                    self._chunked = True
                case "connection":
                    connection = value.lower()
                case "retry-after":
                    self._retry_after_ms = _retry_after_ms(value.strip())
        if self._status in _BODILESS:
            self._length, self._chunked = 0, False
        elif self._chunked and self._length is not None:
            raise NotHttp("it has a length and chunks")
        self._missing = self._length or 0
        self.keep = "keep-alive" in connection if old else "close" not in connection

    def _read_length(self, value: str) -> None:
        if not value.isascii() or not value.isdigit() or len(value) > _MAX_DIGITS:
            raise NotHttp("its length is not a number")
        length = int(value)
        if self._length is not None and self._length != length:
            raise NotHttp("it has two lengths")
        self._length = length

    # -- chunks ------------------------------------------------------------------------

    def _read_chunks(self, data: bytes) -> Reply | None:
        """Parse a part of a chunked body."""
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        view = memoryview(data)
        at = 0
        while True:
            if self._missing:
                part = view[at : at + self._missing]
                self._add(part)
                at += len(part)
                self._missing -= len(part)
                if self._missing:
                    return None
            if self._in_chunk:
                if len(data) - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise NotHttp("a chunk is longer than it says")
                at += 2
                self._in_chunk = False
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            size = _chunk_size(data[at:end])
            if not size:
                # After the last chunk come trailers, which are ignored, and an empty line.
                close = data.find(b"\r\n\r\n", end)
                if close < 0:
                    break
                return self._whole(keep=self.keep and len(data) == close + 4)
            at = end + 2
            self._missing = size
            self._in_chunk = True
        self._buffer += view[at:]
        if len(self._buffer) > _MAX_HEAD_BYTES:
            raise NotHttp("a chunk does not begin")
        return None


def _status(line: str) -> int:
    """``HTTP/1.1 200 OK``."""
    version, _, rest = line.partition(" ")
    code = rest[:3]
    if version not in {"HTTP/1.1", "HTTP/1.0"} or not (code.isascii() and code.isdigit()):
        raise NotHttp("it does not begin like a reply")
    if len(code) != 3 or rest[3:4] not in {"", " "} or code < "100":
        raise NotHttp("its status is invalid")
    return int(code)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > _MAX_DIGITS or digits.strip(b"0123456789abcdefABCDEF"):
        raise NotHttp("the size of a chunk is not a number")
    return int(digits, 16)


def _retry_after_ms(value: str) -> int | None:
    """Whole seconds; the other form, a date, is ignored."""
    if not value.isascii() or not value.isdigit() or len(value) > _MAX_DIGITS:
        return None
    return min(int(value), _MAX_RETRY_AFTER_S) * 1000
