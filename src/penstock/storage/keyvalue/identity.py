"""The identity record of the store: two random values, and the location it was written at (A1).

The identity is written when a store is first opened, including one of an older Penstock. A store
that is opened at a different location is a copy or was restored, and begins a new epoch with its
first commit.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import StoreCorrupt
from penstock.model.identity import (
    ID_BYTES,
    StoreIdentity,
    derive_identity,
    derive_receipt_key,
)
from penstock.storage.contract import RandomBytes
from penstock.storage.keyvalue.encoding import seal, unseal
from penstock.storage.keyvalue.keys import IDENTITY_KEY
from penstock.storage.keyvalue.stage import Stage
from penstock.storage.location import is_same_location

__all__ = ["Identity"]

_LEAST: Final = 2 * ID_BYTES


class Identity:
    """Reads and writes the record."""

    def __init__(self, stage: Stage, random: RandomBytes) -> None:
        self._stage = stage
        self._random = random
        self._store = self._epoch = b""
        self._place = ""

    def load(self, place: str) -> None:
        """After opening at ``place``: read the identity, or stage a new one or a new epoch."""
        self._place = place
        value = self._stage.get(IDENTITY_KEY)
        if value is None:
            self._store = self._random(ID_BYTES)
            self.new_epoch()
            return
        record = unseal(value, "identity")
        if len(record) < _LEAST:
            raise StoreCorrupt("The identity of the store is incomplete.")
        self._store, self._epoch = record[:ID_BYTES], record[ID_BYTES:_LEAST]
        if not is_same_location(record[_LEAST:].decode(), place):
            self.new_epoch()

    def new_epoch(self) -> None:
        """Stage a new epoch, which the next commit makes effective."""
        self._epoch = self._random(ID_BYTES)
        record = self._store + self._epoch + self._place.encode()
        self._stage.put(IDENTITY_KEY, seal(record))

    @property
    def secret(self) -> tuple[bytes, bytes]:
        """The random values of the store and of its epoch; copies record them."""
        return self._store, self._epoch

    @property
    def receipt_key(self) -> bytes:
        """The key that receipts are made with."""
        return derive_receipt_key(self._store)

    def of(self, tenant: str) -> StoreIdentity:
        """The identity that a tenant sees."""
        return derive_identity(self._store, self._epoch, tenant)
