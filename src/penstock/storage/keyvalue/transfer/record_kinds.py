"""The records of a store that a copy or a backup takes along, by type.

Left out is what belongs to one place and one opening: the identity, the format, the chain of
commits, an interrupted commit, the writer, unfinished removals and the progress of a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.keys import (
    COPY_KEY,
    FORMAT_KEY,
    IDENTITY_KEY,
    LINK_PREFIX,
    PAYLOAD_PREFIX,
    PIECES_KEY,
    REMOVAL_PREFIX,
    WRITER_KEY,
)
from penstock.storage.transfer import Item

__all__ = ["kind_of", "records"]

_OURS: Final = b"\x01\x07"
_NAMES: Final = {
    b"\x01\x02": "active",
    b"\x01\x03": "done",
    b"\x01\x04": "failed",
    b"\x01\x05": "attempts",
    b"\x01\x06": "queue",
    PAYLOAD_PREFIX: "payload",
    b"\x03\x01": "log",
}
_OUR_NAMES: Final = (
    *("format", "queue state", "leases", "delayed", "place", "expiry", "trail", "result"),
    *("expired", "retention slot", "partition", "sequence", "consumer", "replay mark", "topic"),
    *("tenant", "idempotency id", "idempotency slot", "open key", "replaced", "queue number"),
    *("replacement", "document", "batch id", "identity", "commit link", "settle id"),
    *("partition idempotency id", "position"),
)
_LEFT_OUT: Final = (
    *(FORMAT_KEY, IDENTITY_KEY, LINK_PREFIX, PIECES_KEY, WRITER_KEY, COPY_KEY),
    REMOVAL_PREFIX,
)
#: RocksDB keeps payloads apart from the other records, so no scan covers both.
_RANGES: Final = (
    (PAYLOAD_PREFIX, b"\x01\x02"),
    (b"\x01\x02", b"\x02"),
    (b"\x03", b"\x04"),
)


def kind_of(key: bytes) -> str:
    """The name of the type of a record; types of a newer version have a number."""
    if key.startswith(_OURS):
        number = key[2]
        return _OUR_NAMES[number] if number < len(_OUR_NAMES) else f"record {number:02x}"
    return _NAMES.get(key[:2]) or f"record {key[:2].hex()}"


def records(adapter: Adapter) -> Iterator[Item]:
    """Every record that a copy takes along, in the order of the keys."""
    for start, end in _RANGES:
        for key, value in adapter.scan(start, end):
            if not key.startswith(_LEFT_OUT):
                yield Item(kind_of(key), key, value)
