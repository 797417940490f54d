"""Records: small values that a door keeps beside queues, and that queues have no field for.

A record belongs to one queue of one tenant, and to this creation of it: after the queue was deleted
and created again, the record of the old one is ignored. It holds no state of deliveries.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from penstock.storage.document_verbs import Documents

__all__ = ["Records"]

T = TypeVar("T", bound=Struct)

_KIND: Final = "door/"


class _Kept(Struct, Generic[T], frozen=True):
    created_at: int
    """When the queue was created to which the record belongs."""
    value: T


class Records(Generic[T]):
    """The records of one door and one type."""

    def __init__(self, store: Documents, door: str, kind: type[T]) -> None:
        self._store = store
        self._door = door
        # Unknown fields are ignored: a newer server may have written them.
        self._decoder = msgspec.json.Decoder(_Kept[kind])  # type: ignore[valid-type]

    async def get(self, tenant: str, name: str, created_at: int) -> T | None:
        """The record of the queue that was created at this time, if it has one."""
        raw = await self._store.get_document(self._kind_of(tenant), name)
        if raw is None:
            return None
        kept = self._decoder.decode(raw)
        return kept.value if kept.created_at == created_at else None

    async def put(self, tenant: str, name: str, created_at: int, value: T) -> None:
        """Store the record, replacing the old one."""
        kept = msgspec.json.encode(_Kept(created_at, value))
        await self._store.put_document(self._kind_of(tenant), name, kept)

    async def delete(self, tenant: str, name: str) -> None:
        """Remove the record, if there is one."""
        await self._store.delete_document(self._kind_of(tenant), name)

    def _kind_of(self, tenant: str) -> str:
        # A tenant's name has no slash, so no two tenants share a kind.
        return f"{_KIND}{self._door}/{tenant}"
