"""The primitives of records and keys; see docs/formats.md.

Keys are big-endian so that byte order is number order; values are little-endian. Every decoder
raises ``StoreCorrupt`` for input that no encoder writes (X1) instead of guessing.
"""

from __future__ import annotations

import struct
import zlib

from penstock.errors import StoreCorrupt

__all__ = [
    "Reader",
    "pack_utf8",
    "pack_var_bytes",
    "pack_var_u64",
    "prefix_end",
    "seal",
    "terminated",
    "unpack_var_u64",
    "unseal",
    "untangle",
]

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")

_TERMINATOR = 0x00
_ESCAPE = 0x01
_MAX_U64 = 2**64 - 1


def terminated(raw: bytes) -> bytes:
    """TerminatedBytes: order-preserving, and no encoding is a prefix of another."""
    return raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"


def untangle(encoded: bytes, start: int = 0) -> tuple[bytes, int]:
    """Decode TerminatedBytes at ``start``; return the bytes and the position after them."""
    end = encoded.find(b"\x00", start)
    if end < 0:
        raise StoreCorrupt("A key has no terminator.")
    body = encoded[start:end]
    if b"\x01" not in body:
        return body, end + 1
    out = bytearray()
    escaped = False
    for byte in body:
        if escaped:
            if byte not in (0x01, 0x02):
                raise StoreCorrupt(f"A key has the unknown escape 01 {byte:02x}.")
            out.append(byte - 1)
            escaped = False
        elif byte == _ESCAPE:
            escaped = True
        else:
            out.append(byte)
    if escaped:
        raise StoreCorrupt("A key ends inside an escape.")
    return bytes(out), end + 1


def prefix_end(prefix: bytes) -> bytes:
    """The first key after every key that begins with ``prefix`` (lexicographic increment)."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        raise ValueError("a prefix of only FF bytes has no end")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


def pack_utf8(text: str) -> bytes:
    """Utf8: u16 length and the bytes."""
    raw = text.encode()
    return _U16.pack(len(raw)) + raw


def pack_var_bytes(raw: bytes) -> bytes:
    """VarBytes: u32 length and the bytes."""
    return _U32.pack(len(raw)) + raw


def pack_var_u64(value: int) -> bytes:
    """Ordered varint: the high nibble of the first byte counts the bytes that follow."""
    if not 0 <= value <= _MAX_U64:
        raise ValueError(f"{value} is not an unsigned 64-bit number")
    extra = 0
    while extra < 8 and value >= 1 << (4 + 8 * extra):
        extra += 1
    body = value.to_bytes(extra + 1, "big")
    return bytes(((extra << 4) | body[0],)) + body[1:]


def unpack_var_u64(encoded: bytes, start: int = 0) -> tuple[int, int]:
    """Decode an ordered varint; return the number and the position after it."""
    if start >= len(encoded):
        raise StoreCorrupt("A key ends before its number.")
    first = encoded[start]
    extra = first >> 4
    end = start + 1 + extra
    if extra > 8 or end > len(encoded):
        raise StoreCorrupt("A key holds a truncated number.")
    value = int.from_bytes(bytes((first & 0x0F,)) + encoded[start + 1 : end], "big")
    if value > _MAX_U64 or (extra and value < 1 << (4 + 8 * (extra - 1))):
        raise StoreCorrupt("A key holds a number in non-canonical form.")
    return value, end


def seal(body: bytes) -> bytes:
    """Append the CRC-32 that Penstock's own records end with (X1)."""
    return body + _U32.pack(zlib.crc32(body))


def unseal(value: bytes, what: str) -> bytes:
    """Verify and strip the CRC-32 of one of Penstock's own records."""
    body = value[:-4]
    if len(value) < 4 or _U32.pack(zlib.crc32(body)) != value[-4:]:
        raise StoreCorrupt(f"The checksum of a {what} record is wrong.")
    return body


class Reader:
    """Reads little-endian values from a record, refusing to read past its end."""

    __slots__ = ("_position", "_what", "_value")

    def __init__(self, value: bytes, what: str) -> None:
        self._value = value
        self._position = 0
        self._what = what

    def u8(self) -> int:
        return self.raw(1)[0]

    def u16(self) -> int:
        return int(_U16.unpack(self.raw(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.raw(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.raw(8))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self.raw(8))[0])

    def raw(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        end = self._position + count
        if end > len(self._value):
            raise StoreCorrupt(f"A {self._what} record is truncated.")
        out = self._value[self._position : end]
        self._position = end
        return out

    def utf8(self) -> str:
        raw = self.raw(self.u16())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise StoreCorrupt(f"A {self._what} record holds text that is not UTF-8.") from error

    def var_bytes(self) -> bytes:
        return self.raw(self.u32())

    @property
    def position(self) -> int:
        """How many bytes have been read."""
        return self._position

    @property
    def exhausted(self) -> bool:
        """Whether everything has been read."""
        return self._position == len(self._value)

    def finish(self) -> None:
        """Refuse trailing bytes."""
        if not self.exhausted:
            raise StoreCorrupt(f"A {self._what} record has trailing bytes.")
