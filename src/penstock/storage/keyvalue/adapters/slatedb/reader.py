"""The reading adapter: a frozen view of a SlateDB store, taken without touching its writer.

The engine keeps queues and counts in memory, so what it reads must not change below it. A reader is
therefore opened anew for a newer view. The garbage collector keeps the objects of a view for at
least five minutes after they were replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.errors import NotWriter
from penstock.model.message import Durability
from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes
from penstock.storage.keyvalue.adapters.place import read_place
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.error_mapping import store_error
from penstock.storage.keyvalue.adapters.slatedb.location import Location
from penstock.storage.keyvalue.adapters.slatedb.object_store import build_store, open_reader
from penstock.storage.keyvalue.adapters.slatedb.reads import Reads

__all__ = ["SlateDBReader"]


class SlateDBReader(Reads):
    """An ordered map of bytes to bytes in SlateDB, frozen when the reader is opened."""

    persistent = True
    inline = False
    unsynced: Durability = "memory"
    has_marks = False
    commit_interval_s = 0.0

    def __init__(self, location: Location, *, held: bool = False) -> None:
        """With ``held`` the view may be read for hours."""
        super().__init__(location)
        self.durability: Durability = location.durability
        try:
            self.handle = open_reader(location, build_store(location), held=held)
        except (uniffi.Error, TimeoutError) as error:
            raise store_error(location.name, error) from error

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:  # noqa: ARG002
        raise NotWriter(f"This process only reads {self.name_of_store}.")

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        self.write(writes, removed, sync)
        return True

    def check(self) -> None:
        """A view stays valid for as long as it is open."""

    def place(self) -> str:
        if self.location.is_remote:
            return self.remote_place
        return read_place(Path(self.location.path))

    def space(self) -> tuple[int, int] | None:
        return None

    def mark(self, mark: Mark) -> None:
        """Does nothing: there are no marks."""

    def read_mark(self) -> Mark | None:
        return None

    def close(self) -> None:
        try:
            wait(self.handle.shutdown(), self._read_s)
        except (uniffi.Error, TimeoutError):
            return
