"""The body of a journal's frame: one commit.

A u32 with the length of the head, the head in msgpack, and the payloads one after another. Payloads
are apart so that they can be read from the journal without decoding anything else.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.adapters import KeyRange, Writes
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX

__all__ = [
    "Commit",
    "CommitHead",
    "decode_commit",
    "encode_commit",
    "is_payload",
    "offset_of_key",
    "split_commit",
]

_SIZE: Final = struct.Struct("<I")
_PAYLOAD_KEY_BYTES: Final = len(PAYLOAD_PREFIX) + 8


class CommitHead(Struct, frozen=True, array_like=True):
    """Everything but the payloads."""

    removed: Sequence[KeyRange]
    """Ranges to remove before the rest, also of payloads."""
    writes: dict[bytes, bytes | None]
    """Records to put; None deletes."""
    offsets: list[int]
    """Of the payloads."""
    sizes: list[int]


class Commit(NamedTuple):
    """A commit, with its payloads apart."""

    head: CommitHead
    payloads: Sequence[bytes]
    start: int
    """Where the payloads begin in the body."""

    @property
    def ends(self) -> array[int]:
        """Where each payload ends, counted from the first."""
        ends, end = array("Q"), 0
        for size in self.head.sizes:
            end += size
            ends.append(end)
        return ends


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(CommitHead)


def is_payload(key: bytes) -> bool:
    """Whether a record is a payload, which is stored in a file of its own."""
    return len(key) == _PAYLOAD_KEY_BYTES and key.startswith(PAYLOAD_PREFIX)


def offset_of_key(key: bytes) -> int:
    """The offset in a payload's key, or in a bound of a range of them."""
    if key > PAYLOAD_PREFIX and not key.startswith(PAYLOAD_PREFIX):
        return 2**64 - 1
    return int.from_bytes(key[len(PAYLOAD_PREFIX) :].ljust(8, b"\0"), "big")


def split_commit(writes: Writes, removed: Sequence[KeyRange]) -> tuple[CommitHead, list[bytes]]:
    """Take the payloads out of a commit, in order. A deleted one becomes a removed range."""
    records: dict[bytes, bytes | None] = {}
    offsets: list[int] = []
    payloads: list[bytes] = []
    ranges = list(removed)
    for key, value in writes.items():
        if not is_payload(key):
            records[key] = value
        elif value is None:
            ranges.append((key, (key[:2] + (offset_of_key(key) + 1).to_bytes(8, "big"))))
        else:
            offsets.append(offset_of_key(key))
            payloads.append(value)
    if offsets != sorted(offsets):
        pairs = sorted(zip(offsets, payloads, strict=True))
        offsets, payloads = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return CommitHead(ranges, records, offsets, [len(payload) for payload in payloads]), payloads


def encode_commit(head: CommitHead, payloads: Sequence[bytes]) -> tuple[bytes, int]:
    """The body, and where the payloads begin in it."""
    raw = _encode(head)
    return b"".join((_SIZE.pack(len(raw)), raw, *payloads)), _SIZE.size + len(raw)


def decode_commit(body: bytes) -> Commit:
    """The commit in the body of a frame; ``StoreCorrupt`` if it has another format."""
    try:
        (size,) = _SIZE.unpack_from(body)
        start = _SIZE.size + size
        head = _decoder.decode(body[_SIZE.size : start])
    except (struct.error, msgspec.DecodeError) as error:
        raise StoreCorrupt(f"A commit in the journal cannot be decoded: {error}.") from error
    if len(head.sizes) != len(head.offsets) or start + sum(head.sizes) != len(body):
        raise StoreCorrupt("The payloads of a commit in the journal are incomplete.")
    return Commit(head, list(_cut(body, start, head.sizes)), start)


def _cut(body: bytes, start: int, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield body[start : start + size]
        start += size
