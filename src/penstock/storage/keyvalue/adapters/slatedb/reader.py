"""The reading adapter: a frozen view of a SlateDB store, taken without touching its writer.

The engine keeps queues and counts in memory, so what it reads must not change below it. A reader is
therefore opened anew for a newer view. The garbage collector keeps the objects of a view for at
least five minutes after they were replaced.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters.read_only import ReadOnly
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.error_mapping import store_error
from penstock.storage.keyvalue.adapters.slatedb.location import Location
from penstock.storage.keyvalue.adapters.slatedb.object_store import (
    FROZEN_POLL_MS,
    HELD_POLL_MS,
    build_store,
    open_reader,
)
from penstock.storage.keyvalue.adapters.slatedb.reads import Reads

__all__ = ["SlateDBReader"]


class SlateDBReader(ReadOnly, Reads):
    """An ordered map of bytes to bytes in SlateDB, frozen when the reader is opened."""

    def __init__(self, location: Location, *, held: bool = False) -> None:
        """With ``held`` the view may be read for hours."""
        super().__init__(location)
        self.durability: Durability = location.durability
        try:
            poll_ms = HELD_POLL_MS if held else FROZEN_POLL_MS
            self.handle = open_reader(location, build_store(location), poll_ms, held=held)
            self._held = held
            self.load_removals()
        except (uniffi.Error, TimeoutError) as error:
            raise store_error(location.name, error) from error

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if self._held:
            # The view follows the writer once more, soon after it was opened.
            self.load_removals()
        return super().scan(start, end, reverse=reverse)

    def close(self) -> None:
        try:
            wait(self.handle.shutdown(), self._read_s)
        except (uniffi.Error, TimeoutError):
            return
