"""The part of the storage contract for documents.

Documents are small values that a service keeps next to its queues: API keys, runs of jobs. They
belong to no tenant; callers that need one per tenant include the tenant in the name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["Documents"]


class Documents(ABC):
    """The verbs of an engine for documents."""

    @abstractmethod
    async def put_document(self, kind: str, name: str, value: bytes) -> None:
        """Store the document under its kind and name, or replace it."""

    @abstractmethod
    async def add_document(
        self, kind: str, name: str, value: bytes, replaces: bytes | None = None
    ) -> bytes:
        """Store the document unless there is one other than ``replaces``. Returns the stored one.

        Of concurrent callers one wins, and all of them get the winner's document.
        """

    @abstractmethod
    async def get_document(self, kind: str, name: str) -> bytes | None:
        """The document, or None."""

    @abstractmethod
    async def list_documents(self, kind: str) -> tuple[tuple[str, bytes], ...]:
        """All documents of the kind, by name."""

    @abstractmethod
    async def delete_document(self, kind: str, name: str, value: bytes | None = None) -> bool:
        """Remove the document, with ``value`` only if it still has this value.

        Returns whether it was removed.
        """
