"""The interface of a dialect for changing a store's schema."""

from __future__ import annotations

from abc import ABC, abstractmethod

from msgspec import Struct

__all__ = ["Applied", "Functions", "Migration", "Schema"]


class Migration(Struct, frozen=True):
    """One numbered step of the schema, which never changes after its release."""

    number: int
    name: str
    """The file name, with the number."""
    statements: tuple[str, ...]
    checksum: str
    """Of its statements, without comments."""


class Functions(Struct, frozen=True):
    """The functions of the schema, which may change between releases."""

    statements: tuple[str, ...]
    checksum: str
    """Of the statements, without comments."""


class Applied(Struct, frozen=True):
    """A migration that was applied to the database, or started."""

    number: int
    name: str
    checksum: str
    done: int | None = None
    """The number of statements that ran, if the migration is unfinished."""


class Schema(ABC):
    """A connection that changes the schema, and holds a lock that excludes other processes."""

    @abstractmethod
    async def applied(self) -> list[Applied]:
        """The applied migrations, by number. Creates the table of migrations if it is missing."""

    @abstractmethod
    async def apply(self, migration: Migration, done: int | None) -> None:
        """Run the statements of a migration after the first ``done``, and record it.

        ``done`` is None for a migration that was not started. The same commit raises the versions
        of all catalogs, so that older servers notice before they write again (see ``catalog``).
        """

    async def replace_functions(self, functions: Functions) -> bool:
        """Create or replace the functions; returns False if the database already has these."""
        raise NotImplementedError("this dialect has no functions")
