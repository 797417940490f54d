"""Views of key-value stores at one moment, for backups, while another process serves them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from penstock.errors import SourceChanged, StoreCorrupt, StoreUnavailable, StoreUnfinished
from penstock.model.identity import ID_BYTES
from penstock.storage.keyvalue.adapters import Adapter
from penstock.storage.keyvalue.adapters.files.reader import FilesReader
from penstock.storage.keyvalue.adapters.slatedb.location import parse_location
from penstock.storage.keyvalue.chain import read_links
from penstock.storage.keyvalue.encoding import prefix_end, unseal
from penstock.storage.keyvalue.keys import COPY_KEY, IDENTITY_KEY, LINK_PREFIX
from penstock.storage.keyvalue.transfer.record_kinds import records
from penstock.storage.transfer import Family, Item, Origin, Source

if TYPE_CHECKING:
    from penstock.storage.dump import DumpRecord

__all__ = ["StoreView", "open_view"]

#: Items between two turns of the event loop.
_SLICE = 256


class StoreView(Source):
    """The records of a store when the view was opened."""

    family: Family = "keyvalue"

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.engine = adapter.name
        if adapter.get(COPY_KEY) is not None:
            raise StoreUnfinished("A copy or a restore into this store has not finished.")
        value = adapter.get(IDENTITY_KEY)
        if value is None:
            raise StoreCorrupt("The store has no identity; open it once with this Penstock.")
        record = unseal(value, "identity")
        self.origin = Origin(record[:ID_BYTES], record[ID_BYTES : 2 * ID_BYTES], "keyvalue")
        self._newest = 0

    async def items(self) -> AsyncIterator[Item]:
        self._newest = self._newest_commit()
        for number, item in enumerate(records(self._adapter)):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            yield item

    def dump(self) -> AsyncIterator[DumpRecord]:
        raise NotImplementedError("a view is backed up as it is")

    def _newest_commit(self) -> int:
        values = (value for _, value in self._adapter.scan(LINK_PREFIX, prefix_end(LINK_PREFIX)))
        return max((link.number for link in read_links(values)), default=0)

    async def check_unchanged(self) -> None:
        """A reader of SlateDB follows the writer once more, soon after it was opened."""
        if self._newest_commit() != self._newest:
            raise SourceChanged("The view of the store moved while it was read.")

    async def close(self) -> None:
        await asyncio.to_thread(self._adapter.close)


def open_view(url: str) -> StoreView:
    """Open the store for reading, without touching what its server does."""
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.scheme in ("files", "rocksdb", "slatedb+file") and not path.exists():
        raise StoreUnavailable(f"There is no store at {url}.", field="url")
    adapter = _open(parts.scheme, url, path)
    try:
        return StoreView(adapter)
    except BaseException:
        adapter.close()
        raise


def _open(scheme: str, url: str, path: Path) -> Adapter:
    match scheme:
        case "files":
            return FilesReader(path)
        case "rocksdb":
            # Imported here so that programs without RocksDB stores do not load RocksDB.
            from penstock.storage.keyvalue.adapters.rocksdb_reader import (  # noqa: PLC0415
                RocksDBReader,
            )

            return RocksDBReader(path)
        case _:
            # Imported here so that programs without SlateDB stores do not load SlateDB.
            from penstock.storage.keyvalue.adapters.slatedb.reader import (  # noqa: PLC0415
                SlateDBReader,
            )

            return SlateDBReader(parse_location(urlsplit(url)), held=True)
