"""Simulates the key-value engine over SlateDB in a bucket of a real object store.

Programs and faults are those of ``local_slatedb``. A commit blocks the loop until the object store
has answered, and virtual time stands still meanwhile. So the seed decides programs, faults and the
order of verbs as it does in a directory; only an answer that comes after ``timeout_ms`` could
change a run.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from penstock.errors import BadInput
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.location import Location, parse_location
from penstock.storage.keyvalue.adapters.slatedb.object_store import build_store, db_path
from penstock.testing.simulation.keyvalue import run
from penstock.testing.simulation.local_slatedb import FAULT_KINDS, LEASE_MS, LocalSlateDB
from penstock.testing.simulation.report import Simulation

__all__ = ["RemoteSlateDB", "remote_simulation"]

#: Longer than an overloaded server needs for a commit.
_TIMEOUT_S: Final = 60


class RemoteSlateDB(LocalSlateDB):
    """SlateDB below the path of a bucket. Half of the seeds keep a cache in a local directory."""

    def __init__(self, seed: int, folder: Path | None = None, *, parent: Location) -> None:
        self._parent = parent
        super().__init__(seed, folder)

    def _location(self) -> Location:
        cache = self.folder / "cache"
        return replace(
            self._parent,
            path=f"{self._parent.path}/{self.folder.name}",
            lease_ms=LEASE_MS,
            timeout_ms=1000 * _TIMEOUT_S,
            cache_path=str(cache) if self._has_cache() else None,
        )

    def _has_cache(self) -> bool:
        """Whether this opening has a cache: a store may lose it, or get one, when it restarts."""
        return self._random.random() < 0.5

    def _reopened(self) -> LocalSlateDB:
        return RemoteSlateDB(self._seed + 1, self.folder, parent=self._parent)

    def remove(self) -> None:
        super().remove()
        location = self._location()
        with suppress(uniffi.Error, TimeoutError):
            # After a violation it may still be open, and would go on to create objects.
            wait(self._inner._db.shutdown(), _TIMEOUT_S)
        with suppress(uniffi.Error, TimeoutError):
            admin = uniffi.AdminBuilder(db_path(location), build_store(location)).build()
            wait(admin.delete_db(True), _TIMEOUT_S)


def remote_simulation(url: str) -> Simulation:
    """The simulation on a bucket: every seed has a store of its own below the path of ``url``."""
    location = parse_location(urlsplit(url))
    if location.reader:
        raise BadInput("A simulation writes: the store must not have reader=true.", field="store")
    # Virtual time passes between commits, so the pause between them would be skipped anyway.
    parent = replace(location, commit_interval_ms=0)
    return Simulation(partial(run, adapter=partial(RemoteSlateDB, parent=parent)), FAULT_KINDS)
