"""Key-value stores as the source and the target of a copy."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from penstock.errors import StoreNotEmpty
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters import Adapter, Writes
from penstock.storage.keyvalue.core import FORMAT_VERSION, Core
from penstock.storage.keyvalue.encoding import seal, unseal
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import COPY_KEY, FORMAT_KEY, IDENTITY_KEY, WRITER_KEY
from penstock.storage.keyvalue.transfer.export import dump
from penstock.storage.keyvalue.transfer.loading import Loader
from penstock.storage.keyvalue.transfer.record_kinds import records
from penstock.storage.threads import in_thread
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

__all__ = ["KeyValueSource", "KeyValueTarget"]

_U32: Final = struct.Struct("<I")
#: Every version refuses it as newer than itself.
_UNFINISHED_FORMAT: Final = 0xFFFF_FFFF
#: RocksDB keeps payloads apart from the other records.
_EVERYTHING: Final = ((b"\x01\x01", b"\x01\x02"), (b"\x01\x02", b"\x04"))
#: Items between two turns of the event loop.
_SLICE: Final = 256


class KeyValueSource(Source):
    """A store that this process has opened for writing, so no other process writes to it."""

    family: Family = "keyvalue"

    def __init__(self, engine: KeyValueEngine, core: Core) -> None:
        self._engine = engine
        self._core = core
        store, epoch = core.identity.secret
        self.origin = Origin(store, epoch, "keyvalue")

    @classmethod
    async def open(cls, adapter: Adapter) -> KeyValueSource:
        """Open the store as an engine does, which checks it and writes its identity."""
        engine = await KeyValueEngine.open(adapter, EngineOptions())
        return cls(engine, engine.core)

    async def items(self) -> AsyncIterator[Item]:
        for number, item in enumerate(records(self._core.adapter)):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            yield item

    async def dump(self) -> AsyncIterator[DumpRecord]:
        for number, record in enumerate(dump(self._core)):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            yield record

    async def check_unchanged(self) -> None:
        """The store is locked; one on an object store may have been taken over."""
        self._core.adapter.check()

    async def close(self) -> None:
        await self._engine.close()


class KeyValueTarget(Target):
    """An ordered store without an engine."""

    family: Family = "keyvalue"

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._open = True

    async def begin(self, origin: Origin) -> Progress:
        value = self._adapter.get(COPY_KEY)
        if value is not None:
            progress = decode_progress(unseal(value, "copy"))
            if progress.origin != origin:
                raise StoreNotEmpty("The target is an unfinished copy of another store.")
            return progress
        scans = (self._adapter.scan(*span) for span in _EVERYTHING)
        if any(key != WRITER_KEY for key, _ in chain.from_iterable(scans)):
            raise StoreNotEmpty("The target has data already.")
        progress = Progress(origin)
        self._adapter.write(
            {
                FORMAT_KEY: seal(_U32.pack(_UNFINISHED_FORMAT)),
                COPY_KEY: seal(encode_progress(progress)),
            },
            (),
            sync=True,
        )
        return progress

    async def load(self, records: AsyncIterator[DumpRecord]) -> AsyncIterator[Item]:
        loader = Loader()
        async for record in records:
            for item in loader.items(record):
                yield item
        for item in loader.rest():
            yield item

    async def write(self, items: Batch, progress: Progress) -> None:
        writes = {item.key: item.value for item in items}
        writes[COPY_KEY] = seal(encode_progress(progress))
        await in_thread(lambda: self._adapter.write(writes, (), sync=True))

    async def items(self) -> AsyncIterator[Item]:
        for number, item in enumerate(records(self._adapter)):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            yield item

    async def finish(self, store: bytes, epoch: bytes) -> None:
        place = self._adapter.place().encode()
        last: Writes = {
            IDENTITY_KEY: seal(store + epoch + place),
            FORMAT_KEY: seal(_U32.pack(FORMAT_VERSION)),
            COPY_KEY: None,
        }
        await in_thread(lambda: self._adapter.write(last, (), sync=True))
        # Opening it checks what the copy consists of, and begins the chain of commits.
        self._open = False
        engine = await KeyValueEngine.open(self._adapter, EngineOptions())
        await engine.close()

    async def close(self) -> None:
        if self._open:
            await in_thread(self._adapter.close)
