"""Pieces: the large records of a large commit, written before the commit itself (P2).

The RocksDB binding holds the GIL during a write, so a commit of 16 MiB would stop the event loop
for 30 ms. Payloads and log entries, which make up most of such a commit, are new records that no
reader looks at before the commit has moved the end of the log. So they can be written first, in
several writes of at most ``MAX_PIECE_BYTES``; the remaining records follow in one atomic write.

After a crash between the two, the entries must not stay: the end of the log would pass them later.
The first write therefore stores the keys of all pieces, and the last one deletes that record. A
store that still has it when it is opened removes those keys.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.adapters import Writes
from penstock.storage.keyvalue.encoding import seal, unseal
from penstock.storage.keyvalue.keys import PIECES_KEY, is_added_once

__all__ = ["MAX_PIECE_BYTES", "MAX_WHOLE_BYTES", "cut", "removal"]

#: Up to this size a commit is one write, of 5 to 8 ms. A batch of 1,000 messages of 1 KiB fits:
#: in pieces, 10 to 25 % fewer such batches are published per second.
MAX_WHOLE_BYTES: Final = 2 * 1024 * 1024

#: RocksDB takes 3 to 5 ms for a write of this size.
MAX_PIECE_BYTES: Final = 1024 * 1024


def cut(writes: Writes) -> tuple[list[Writes], Writes]:
    """The pieces to write first, in order, and the rest, which completes the commit."""
    rest = dict(writes)
    pieces: list[dict[bytes, bytes | None]] = []
    keys: list[bytes] = []
    left = 0
    for key, value in writes.items():
        if not value or not is_added_once(key):
            continue
        del rest[key]
        keys.append(key)
        if not pieces or len(value) > left:
            pieces.append({})
            left = MAX_PIECE_BYTES
        pieces[-1][key] = value
        left -= len(value)
    if not pieces:
        return [], writes
    rest[PIECES_KEY] = None
    return [{PIECES_KEY: seal(msgspec.msgpack.encode(keys))}, *pieces], rest


def removal(value: bytes) -> Writes:
    """The writes that undo an unfinished commit, from the record of its pieces."""
    try:
        keys = msgspec.msgpack.decode(unseal(value, "pieces"), type=list[bytes])
    except msgspec.DecodeError as error:
        raise StoreCorrupt("The record of an unfinished commit cannot be decoded.") from error
    return dict.fromkeys([*keys, PIECES_KEY])
