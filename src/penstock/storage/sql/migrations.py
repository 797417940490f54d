"""The schema of a store: numbered migrations, which only go forward, functions, and views.

A migration is a file ``NNNN_name.sql`` in its dialect's ``migrations`` directory; a statement ends
with ``;`` at the end of a line that is not between ``$$`` and ``$$``. Each dialect has its own
numbers. The table ``penstock_migration`` lists the migrations that a database has.
``penstock migrate`` applies the missing ones, one process at a time. Afterwards it replaces the
functions of ``functions.sql``, if the dialect has any, and the views of ``views.sql``, if the
database has other ones. Opening a store only checks, and refuses a schema that is missing, older,
or newer than this Penstock knows. Views are for other programs, so no server checks them.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final

from msgspec import Struct

from penstock.errors import (
    StoreBusy,
    StoreError,
    StoreTooNew,
    StoreTooOld,
    StoreUnavailable,
    StoreUnfinished,
)
from penstock.storage.sql.database import ConnectionLost, Database, RetryTransaction, load_module
from penstock.storage.sql.urls import parse

__all__ = [
    "UNFINISHED",
    "VIEWS",
    "Applied",
    "Functions",
    "Migrated",
    "Migration",
    "Schema",
    "Views",
    "check",
    "functions",
    "known",
    "migrate",
    "read",
    "views",
]

#: The number of a migration that no version has: while a copy into the database is not finished, it
#: makes servers of all versions refuse the database.
UNFINISHED: Final = 9_999
#: The names of the views.
VIEWS: Final = ("penstock_messages", "penstock_deliveries", "penstock_queues")


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


class Views(Functions, frozen=True):
    """The views, and the functions that only they use."""


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

    @abstractmethod
    async def replace_views(self, views: Views) -> bool:
        """Create or replace the views; returns False if the database already has these.

        Also returns False, and logs a warning, if the user may not create them.
        """


# -- applying and checking -----------------------------------------------------------

_FILE: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_COMMENT: Final = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_END: Final = re.compile(r";[ \t]*$", re.MULTILINE)


class Migrated(Struct, frozen=True):
    """The result of ``migrate``."""

    before: int
    """The number of the last migration applied before; 0 for an empty database."""
    after: int
    applied: tuple[str, ...]
    """The names of the migrations, and ``functions`` and ``views`` if those were replaced."""


@cache
def known(dialect: str) -> tuple[Migration, ...]:
    """Every migration of a dialect, from number 1 on."""
    folder = resources.files("penstock.storage.sql").joinpath(dialect, "migrations")
    files = sorted((file for file in folder.iterdir() if _FILE.fullmatch(file.name)), key=str)
    found = tuple(read(file.name, file.read_text(encoding="utf-8")) for file in files)
    assert [migration.number for migration in found] == list(range(1, len(found) + 1))
    return found


@cache
def functions(dialect: str) -> Functions | None:
    """The functions of a dialect; None if it has none."""
    file = resources.files("penstock.storage.sql").joinpath(dialect, "functions.sql")
    return Functions(*_parse(file.read_text(encoding="utf-8"))) if file.is_file() else None


@cache
def views(dialect: str) -> Views:
    """The views of a dialect."""
    file = resources.files("penstock.storage.sql").joinpath(dialect, "views.sql")
    return Views(*_parse(file.read_text(encoding="utf-8")))


def read(file: str, text: str) -> Migration:
    """Parse the file of a migration."""
    return Migration(int(file[:4]), file.removesuffix(".sql"), *_parse(text))


def _parse(text: str) -> tuple[tuple[str, ...], str]:
    """The statements of a file, and their checksum."""
    statements = tuple(filter(None, map(str.strip, _pieces(_COMMENT.sub("", text)))))
    spaced = "\n".join(" ".join(statement.split()) for statement in statements)
    return statements, hashlib.sha256(spaced.encode()).hexdigest()


def _pieces(text: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(text):
        # The statements inside a function end with semicolons too.
        if text.count("$$", start, end.start()) % 2 == 0:
            yield text[start : end.start()]
            start = end.end()
    yield text[start:]


async def migrate(url: str, *, unfinished: bool = False) -> Migrated:
    """Apply the missing migrations. A concurrent call waits, and then finds nothing to do.

    Refuses a database with an unfinished copy, except if ``unfinished``.
    """
    address = parse(url)
    migrations = known(address.scheme)
    module = load_module(address.scheme, "schema")
    try:
        async with module.opened(address) as schema:
            has = await schema.applied()
            if unfinished and has and has[-1].number == UNFINISHED:
                has.pop()
            done = [item for item in has if item.done is None]
            _refuse_strange(migrations, has)
            begun = {item.number: item.done for item in has if item.done is not None}
            missing = migrations[len(done) :]
            for migration in missing:
                await schema.apply(migration, begun.get(migration.number))
            applied = [migration.name for migration in missing]
            needed = functions(address.scheme)
            if needed is not None and await schema.replace_functions(needed):
                applied.append("functions")
            if await schema.replace_views(views(address.scheme)):
                applied.append("views")
    except RetryTransaction as error:
        raise StoreBusy(
            f"Another process changes the schema, or holds a lock on it: {error}."
        ) from error
    except ConnectionLost as error:
        raise StoreUnavailable(
            f"The connection was lost; run the migration again to finish it: {error}."
        ) from error
    return Migrated(len(done), len(migrations), tuple(applied))


async def check(database: Database) -> None:
    """Refuse a database whose schema is not the one that this Penstock works with."""
    migrations = known(database.name)
    try:
        async with database.reading() as session:
            rows = await session.fetch("migrations")
    except StoreTooOld:
        rows = []
    has = [Applied(number, name, checksum) for number, name, checksum in rows]
    needed = len(migrations)
    if not has:
        raise StoreTooOld(
            f"The database has no Penstock schema; this Penstock needs schema {needed}."
        )
    _refuse_strange(migrations, has)
    if len(has) < needed:
        raise StoreTooOld(f"The database has schema {len(has)}; this Penstock needs {needed}.")
    expected = functions(database.name)
    if expected is not None:
        async with database.reading() as session:
            ((checksum,),) = await session.fetch("functions_checksum")
        if checksum != expected.checksum:
            raise StoreTooOld("The database's functions are not those of this Penstock.")


def _refuse_strange(migrations: tuple[Migration, ...], has: list[Applied]) -> None:
    """Refuse migrations that are not a prefix of the known ones."""
    if has and has[-1].number == UNFINISHED:
        raise StoreUnfinished("A copy or a restore into this database has not finished.")
    if len(has) > len(migrations):
        raise StoreTooNew(
            f"The database has schema {has[-1].number}; this Penstock knows schemas up to "
            f"{len(migrations)}."
        )
    for ours, theirs in zip(migrations, has, strict=False):
        if (ours.number, ours.checksum) != (theirs.number, theirs.checksum):
            raise StoreError(
                f"Migration {theirs.name} of the database is not the {ours.name} of this "
                "Penstock: one of the two was changed after it was applied. Use the Penstock "
                "that applied it."
            )
