"""Documents: small sealed records that a service keeps next to its queues.

They are read from the store on every access and use no memory. Their owner decides their content
and size.
"""

from __future__ import annotations

from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.encoding import seal, unseal
from penstock.storage.keyvalue.guarded import Guarded, changing, reading
from penstock.storage.keyvalue.keys import document_key, documents_prefix

__all__ = ["DocumentVerbs"]


class DocumentVerbs(Guarded):
    """The verbs of the contract that are about documents."""

    _core: Core

    @changing
    async def put_document(self, kind: str, name: str, value: bytes) -> None:
        self._begin()
        self._core.stage.put(document_key(kind, name), seal(value))
        await self._committer.commit()

    @changing
    async def add_document(
        self, kind: str, name: str, value: bytes, replaces: bytes | None = None
    ) -> bytes:
        self._begin()
        key = document_key(kind, name)
        sealed = self._core.stage.get(key)
        there = None if sealed is None else unseal(sealed, "document")
        if there is None or there == replaces:
            self._core.stage.put(key, seal(value))
            there = value
        await self._committer.commit()
        return there

    @reading
    async def get_document(self, kind: str, name: str) -> bytes | None:
        self._begin()
        key = document_key(kind, name)
        value = self._core.stage.get(key)
        # Every request looks up an API key; that must not wait for unrelated commits.
        if self._core.stage.is_uncommitted(key):
            await self._committer.settled()
        return None if value is None else unseal(value, "document")

    @reading
    async def list_documents(self, kind: str) -> tuple[tuple[str, bytes], ...]:
        self._begin()
        prefix = documents_prefix(kind)
        found = tuple(
            (key[len(prefix) :].decode(), unseal(value, "document"))
            for key, value in self._core.stage.prefix(prefix)
        )
        await self._committer.settled()
        return found

    @changing
    async def delete_document(self, kind: str, name: str, value: bytes | None = None) -> bool:
        self._begin()
        key = document_key(kind, name)
        there = self._core.stage.get(key)
        found = there is not None and (value is None or there == seal(value))
        if found:
            self._core.stage.delete(key)
        await self._committer.commit()
        return found
