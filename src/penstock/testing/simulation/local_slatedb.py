"""Simulates the key-value engine over SlateDB in a directory.

SlateDB syncs nothing there, so there is no power loss. Another fault takes its place: another
writer opens the store while this one goes on, and is fenced. After a failed sync a commit may or
may not be stored, as after a PUT without a reply.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.storage.keyvalue.adapters.slatedb.adapter import SlateDBAdapter
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.location import Location, parse_location
from penstock.testing.simulation.keyvalue import run
from penstock.testing.simulation.local_stores import LocalStore
from penstock.testing.simulation.report import Simulation

__all__ = ["FAULT_KINDS", "LEASE_MS", "SIMULATION", "LocalSlateDB"]

FAULT_KINDS: Final = ("fence", "kill", "restart", "failed_sync", "full_disk")
#: Leases go by real time, so none may end during a run.
LEASE_MS: Final = 600_000


class LocalSlateDB(LocalStore):
    """SlateDB in a directory."""

    _inner: SlateDBAdapter

    def __init__(self, seed: int, folder: Path | None = None) -> None:
        self._successor: LocalSlateDB | None = None
        super().__init__(seed, folder)

    def _location(self) -> Location:
        return parse_location(urlsplit(f"slatedb+file://{self.folder}/store?lease_ms={LEASE_MS}"))

    def _open(self) -> SlateDBAdapter:
        adapter = SlateDBAdapter(self._location(), id=f"{self._seed:016x}", take_over=True)
        # Programs are short, so their ranges have few keys.
        adapter.removed_at_once = 2
        return adapter

    def fence(self) -> None:
        """Another writer opens the store. This one does not know."""
        self._successor = self._reopened()

    def _reopened(self) -> LocalSlateDB:
        return LocalSlateDB(self._seed + 1, self.folder)

    def _survivor(self) -> LocalSlateDB:
        successor = self._successor or self._reopened()
        # The old handle is fenced by now, so closing it changes nothing.
        with suppress(uniffi.Error, TimeoutError):
            wait(self._inner._db.shutdown())
        return successor

    def _abandon(self) -> None:
        self._inner._closing = True
        self._inner._wake.set()
        self._inner._thread.join()

    def _refuse(self, error: int, write: Callable[[], None]) -> None:
        # What became of the object is unknown after a failed PUT. A full store refuses it.
        if error == errno.EIO and self._random.random() < 0.5:
            write()
        raise OSError(error, os.strerror(error))


SIMULATION: Final = Simulation(partial(run, adapter=LocalSlateDB), FAULT_KINDS)
