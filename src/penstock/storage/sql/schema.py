"""What a dialect provides to change the schema of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod

from msgspec import Struct

__all__ = ["Applied", "Migration", "Schema"]


class Migration(Struct, frozen=True):
    """One numbered step of the schema, which is never changed once it was released."""

    number: int
    name: str
    """As its file is named, with the number."""
    statements: tuple[str, ...]
    checksum: str
    """Of its statements, whatever comments stand between them."""


class Applied(Struct, frozen=True):
    """A migration that the database has, or that was begun there."""

    number: int
    name: str
    checksum: str
    done: int | None = None
    """How many of its statements were run, where the last of them were not."""


class Schema(ABC):
    """One connection that changes tables. While it is open nobody else does."""

    @abstractmethod
    async def applied(self) -> list[Applied]:
        """What the database has, by number. Creates the table that says so."""

    @abstractmethod
    async def apply(self, migration: Migration, done: int | None) -> None:
        """Run the statements of a migration after the first ``done``, and write it down.

        None: nobody has begun with it. The same commit raises the versions of all catalogs, so
        that servers of older versions notice before they write again (see ``catalog``).
        """
