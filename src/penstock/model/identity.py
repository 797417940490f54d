"""The store that a position in the log belongs to (A1).

A store has one identity forever, and an epoch that changes with every restore and every copy.
An offset that was recorded elsewhere (in a lake, a checkpoint, a call of ``archived``) is valid
only with both: another store, or the same one restored from a backup, has other entries at the
same offsets.

Both are derived per tenant from two random values of the store, so a tenant's identity reveals
nothing about other tenants (T1).
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from msgspec import Struct

from penstock.errors import BadInput, OtherStore

__all__ = [
    "ID_BYTES",
    "StoreIdentity",
    "check_identity",
    "check_position",
    "check_store",
    "derive_identity",
    "derive_receipt_key",
]

#: Bytes of the random values of a store, and of the ids derived from them.
ID_BYTES: Final = 16
_PART: Final = re.compile(f"[0-9a-f]{{{2 * ID_BYTES}}}")


class StoreIdentity(Struct, frozen=True):
    """The identity of a tenant's part of a store, in hexadecimal."""

    store: str
    """Never changes."""
    epoch: str
    """Changes with every restore and every copy of the store."""

    def __str__(self) -> str:
        return f"{self.store[:12]} epoch {self.epoch[:12]}"


def derive_identity(store: bytes, epoch: bytes, tenant: str) -> StoreIdentity:
    """The identity that a tenant sees, from the random values of the store."""

    def derive(secret: bytes) -> str:
        return hashlib.blake2b(tenant.encode(), digest_size=ID_BYTES, key=secret).hexdigest()

    return StoreIdentity(derive(store), derive(epoch))


def derive_receipt_key(store: bytes) -> bytes:
    """The key of a store's receipts, from the store's own random value.

    Only the servers of the store have that value, so receipts cannot be guessed, and each server
    settles the others'. The key does not depend on the epoch: receipts survive a restore.
    """
    return hashlib.blake2b(digest_size=32, key=store, person=b"receipts").digest()


def check_identity(store: object) -> StoreIdentity:
    """Return the identity, or refuse it."""
    if isinstance(store, StoreIdentity):
        parts: tuple[object, ...] = (store.store, store.epoch)
        if all(isinstance(part, str) and _PART.fullmatch(part) for part in parts):
            return store
    raise BadInput("store must be what identity() returned.", field="store")


def check_store(present: StoreIdentity, known: StoreIdentity, what: str) -> None:
    """Raise ``OtherStore`` unless ``what``, recorded under ``known``, belongs to this store."""
    if known.store != present.store:
        raise OtherStore(f"{what} belongs to store {known}; this is {present}.", field="store")
    if known.epoch != present.epoch:
        raise OtherStore(
            f"{what} belongs to {known}; this store is {present}: it was restored or copied since.",
            field="epoch",
        )


def check_position(position: int, log_end: int, what: str) -> None:
    """Raise ``OtherStore`` if the log ends below ``position``, an offset read earlier."""
    if position > log_end:
        raise OtherStore(
            f"{what} is at offset {position}, and the log ends at {log_end}: the store has lost "
            "its newest entries, because it was reset or restored from a backup.",
            field="store",
        )
