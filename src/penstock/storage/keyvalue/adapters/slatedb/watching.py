"""Watches the writer of a store through a reader, without touching the writer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.error_mapping import store_error
from penstock.storage.keyvalue.adapters.slatedb.location import Location
from penstock.storage.keyvalue.adapters.slatedb.object_store import (
    build_store,
    db_path,
    open_reader,
)
from penstock.storage.keyvalue.adapters.slatedb.writer_record import WriterRecord, decode_writer
from penstock.storage.keyvalue.keys import WRITER_KEY

__all__ = ["Watch", "has_store"]

#: A poll takes ten GET and HEAD requests.
_POLLS_PER_LEASE: Final = 4
_MAX_POLL_S: Final = 5.0
_NO_STORE: Final = "failed to find latest transactional object"


class Watch:
    """Reads the writer record again and again. Its methods block."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._reader: Any = None
        self.poll_s = min(location.lease_ms / 1000 / _POLLS_PER_LEASE, _MAX_POLL_S)
        """How often the record is read."""

    def writer(self) -> WriterRecord | None:
        """The record as of the last poll; None if the store does not exist yet."""
        try:
            if self._reader is None:
                if not self._location.is_remote and not Path(self._location.path).exists():
                    return None
                store = build_store(self._location)
                self._reader = open_reader(self._location, store, int(self.poll_s * 1000))
            reading = self._reader.get(WRITER_KEY)
            value: bytes | None = wait(reading, self._location.timeout_ms / 1000)
        except uniffi.Error as error:
            if self._reader is None and _NO_STORE in str(error):
                return None
            raise store_error(self._location.name, error) from error
        except TimeoutError as error:
            raise store_error(self._location.name, error) from error
        return None if value is None else decode_writer(value)

    def epoch(self) -> int:
        """How often the store was opened for writing. Opening begins with raising this number."""
        try:
            admin = uniffi.AdminBuilder(
                db_path(self._location), build_store(self._location)
            ).build()
            manifest = wait(admin.read_manifest(None), self._location.timeout_ms / 1000)
        except (uniffi.Error, TimeoutError) as error:
            raise store_error(self._location.name, error) from error
        return 0 if manifest is None else int(manifest.writer_epoch)

    def is_silent(self, seconds: float) -> bool:
        """Whether the writer is gone or does not renew its record for ``seconds``."""
        first = self.writer()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, self.poll_s))
            record = self.writer()
            if record is None or record.is_gone:
                return True
            if record != first:
                return False
        return True

    def close(self) -> None:
        if self._reader is not None:
            reader, self._reader = self._reader, None
            try:
                wait(reader.shutdown(), self._location.timeout_ms / 1000)
            except (uniffi.Error, TimeoutError):
                return


def has_store(location: Location) -> bool:
    """Whether the store exists. Opening it for writing would create it."""
    if not location.is_remote and not Path(location.path).exists():
        return False
    return Watch(location).epoch() > 0
