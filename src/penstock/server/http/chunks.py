"""Bodies in chunks (RFC 9112, 7.1), decoded as they arrive."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import BadInput

__all__ = ["ChunkDecoder"]

#: A size in hexadecimal, and extensions, which are ignored.
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
#: The longest line with a size. Longer extensions are a way to send data that no limit counts.
_MAX_LINE: Final = 256
#: All trailers together.
_MAX_TRAILERS: Final = 8 * 1024
_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


class ChunkDecoder:
    """Decodes one body."""

    __slots__ = ("_after_data", "_in_trailers", "_line", "_missing", "_trailers", "rest")

    def __init__(self) -> None:
        #: The bytes of the current chunk that have not arrived.
        self._missing = 0
        self._after_data = False
        self._in_trailers = False
        self._trailers = 0
        #: The beginning of a line whose end has not arrived.
        self._line = b""
        self.rest: bytes | None = None
        """What follows the body; None until its end has arrived."""

    def feed(self, data: bytes) -> bytes:
        """The decoded bytes of ``data``; raises ``BadInput`` if they are not chunks."""
        parts: list[bytes] = []
        position = 0
        while position < len(data):
            if self._missing:
                part = data[position : position + self._missing]
                parts.append(part)
                position += len(part)
                self._missing -= len(part)
                self._after_data = not self._missing
                continue
            end = data.find(b"\n", position)
            if end < 0:
                self._line += data[position:]
                self._check_length(len(self._line))
                break
            line = self._line + data[position:end]
            self._line = b""
            position = end + 1
            if self._take_line(line):
                self.rest = data[position:]
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_line(self, line: bytes) -> bool:
        """Take a line without its LF; returns whether it is the end of the body."""
        self._check_length(len(line))
        if not line.endswith(b"\r"):
            raise _refusal("has a line that does not end in CR LF")
        line = line[:-1]
        if self._after_data:
            if line:
                raise _refusal("has a chunk that is longer than its size")
            self._after_data = False
        elif self._in_trailers:
            return self._take_trailer(line)
        else:
            found = _SIZE.fullmatch(line)
            if found is None:
                raise _refusal("has a chunk without a size")
            self._missing = int(found[1], 16)
            self._in_trailers = not self._missing
        return False

    def _take_trailer(self, line: bytes) -> bool:
        """Ignore a trailer; an empty line ends the body."""
        if not line:
            return True
        self._trailers += len(line)
        if self._trailers > _MAX_TRAILERS or _TRAILER.fullmatch(line) is None:
            raise _refusal("has a trailer that is too long, or is none")
        return False

    def _check_length(self, length: int) -> None:
        if length > (_MAX_TRAILERS if self._in_trailers else _MAX_LINE):
            raise _refusal("has a line that is too long")


def _refusal(what: str) -> BadInput:
    return BadInput(f"The body {what}.", field="Transfer-Encoding")
