"""Stores in databases as the source and the target of a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import SourceChanged, StoreLocked, StoreNotEmpty, StoreUnavailable
from penstock.storage.sql.database import Database, Row
from penstock.storage.sql.transfer.export import dump
from penstock.storage.sql.transfer.loading import Loader
from penstock.storage.sql.transfer.tables import TABLES, Table, from_row, statements, to_row
from penstock.storage.transfer import (
    Batch,
    Family,
    Item,
    Origin,
    Progress,
    Source,
    Target,
    decode_progress,
    encode_progress,
)

if TYPE_CHECKING:
    from penstock.storage.dump import DumpRecord

__all__ = ["GIVEN", "SqlSource", "SqlTarget", "row_item"]

#: The document with the progress of an unfinished copy.
_KIND: Final = "penstock.copy"
_NAME: Final = "progress"
#: The item with the last number that was given to a segment.
GIVEN: Final = "given"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Any]).decode
_BY_NAME: Final = {table.name: table for table in TABLES}


def row_item(table: str, row: Iterable[object]) -> Item:
    """The item of a row."""
    return Item(table, b"", _encode(list(row)))


async def _pages(database: Database, table: Table) -> AsyncIterator[list[list[Any]]]:
    """The rows of a table, page by page."""
    statement, after = f"first_{table.name}", dict[str, object]()
    while True:
        async with database.reading() as session:
            stored: list[Row] = await session.fetch(statement, **after)
        yield [to_row(table, database.name, row) for row in stored]
        if len(stored) < table.page:
            return
        statement, after = f"next_{table.name}", table.after(stored[-1])


async def _items(database: Database) -> AsyncIterator[Item]:
    async with database.reading() as session:
        ((given,),) = await session.fetch("given")
    yield row_item(GIVEN, [int(given)])
    for table in TABLES:
        async for rows in _pages(database, table):
            for row in rows:
                if table.name != "penstock_document" or row[0] != _KIND:
                    yield row_item(table.name, row)


class SqlSource(Source):
    """A store in a database that no server has open."""

    family: Family = "sql"

    def __init__(self, database: Database, origin: Origin, seen: tuple[str, ...]) -> None:
        self._database = database
        self.origin = origin
        self._seen = seen

    @classmethod
    async def open(cls, database: Database) -> SqlSource:
        """Refuses a database without a store, and one that a server has open."""
        database.add_statements(statements(database.name))
        async with database.reading() as session:
            rows = await session.fetch("find_identity")
            ((now,),) = await session.fetch("now")
            ((servers,),) = await session.fetch("live_servers", now=int(now))
        if not rows:
            raise StoreUnavailable("No server has opened a store in the database.", field="url")
        if servers:
            raise StoreLocked(
                f"{servers} servers or programs have the store open, or were killed less than a "
                "minute ago."
            )
        store, epoch, _ = rows[0]
        return cls(database, Origin(bytes(store), bytes(epoch), "sql"), await _look(database))

    def items(self) -> AsyncIterator[Item]:
        return _items(self._database)

    def dump(self) -> AsyncIterator[DumpRecord]:
        return dump(self._database, self.origin.store)

    async def check_unchanged(self) -> None:
        if await _look(self._database) != self._seen:
            raise SourceChanged("The source was written to while it was copied.")

    async def close(self) -> None:
        await self._database.close()


async def _look(database: Database) -> tuple[str, ...]:
    """A fingerprint of the contents: every verb changes at least one of these values."""
    async with database.reading() as session:
        (row,) = await session.fetch("fingerprint")
        ((given,),) = await session.fetch("given")
    return (str(given), *map(str, row))


class SqlTarget(Target):
    """A migrated database without a store."""

    family: Family = "sql"

    def __init__(self, database: Database) -> None:
        self._database = database
        database.add_statements(statements(database.name))

    async def begin(self, origin: Origin) -> Progress:
        async with self._database.reading() as session:
            marked = await session.fetch("find_marker")
            found = await session.fetch("get_document", kind=_KIND, name=_NAME)
        if found:
            progress = decode_progress(bytes(found[0][0]))
            if progress.origin != origin:
                raise StoreNotEmpty("The target is an unfinished copy of another store.")
            return progress
        if not marked:
            await self._refuse_contents()
        progress = Progress(origin)
        async with self._database.transaction() as session:
            await session.run("mark_unfinished")
            await session.run(
                "put_document", kind=_KIND, name=_NAME, value=encode_progress(progress)
            )
        return progress

    async def _refuse_contents(self) -> None:
        async with self._database.reading() as session:
            for table in TABLES:
                if await session.fetch(f"first_{table.name}"):
                    raise StoreNotEmpty(f"The target has data already: {table.name} has rows.")

    async def load(self, records: AsyncIterator[DumpRecord]) -> AsyncIterator[Item]:
        loader = Loader()
        async for record in records:
            for table, row in loader.rows(record):
                yield row_item(table, row)
        for table, row in loader.rest():
            yield row_item(table, row)

    async def write(self, items: Batch, progress: Progress) -> None:
        async with self._database.transaction() as session:
            for kind, same in groupby(items, key=lambda item: item.kind):
                rows = [_decode(item.value) for item in same]
                if kind == GIVEN:
                    ((given,),) = rows
                    if given:
                        await self._database.set_given(session, given)
                    continue
                table = _BY_NAME[kind]
                stored = [from_row(table, self._database.name, row) for row in rows]
                await session.write(f"into_{kind}", stored)
            await session.run(
                "put_document", kind=_KIND, name=_NAME, value=encode_progress(progress)
            )

    def items(self) -> AsyncIterator[Item]:
        return _items(self._database)

    async def finish(self, store: bytes, epoch: bytes) -> None:
        async with self._database.transaction() as session:
            for table in TABLES:
                if table.numbered:
                    await self._database.number_rows(session, table.name)
            ((place,),) = await session.fetch("place")
            await session.run("remove_store")
            await session.run("make_identity", store=store, epoch=epoch, place=str(place))
            await session.run("delete_document", kind=_KIND, name=_NAME)
            await session.run("remove_marker")

    async def close(self) -> None:
        await self._database.close()
