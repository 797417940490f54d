"""The reference: bare RocksDB with the same options and payloads, one synced batch."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

from rocksdict import Rdict, WriteBatch, WriteOptions

from bench.measuring import payloads
from penstock.storage.keyvalue.adapters.rocksdb import store_options


class Bare:
    """Writes batches directly to RocksDB."""

    def __init__(self, path: Path) -> None:
        self._db = Rdict(str(path), store_options())
        self._synced = WriteOptions()
        self._synced.sync = True
        self._payloads = cycle(payloads(1000))
        self._number = 0

    async def commit(self, count: int) -> int:
        """One synced batch of ``count`` payloads."""
        batch = WriteBatch(raw_mode=True)
        for _ in range(count):
            batch.put(b"\x01\x01" + self._number.to_bytes(8, "big"), next(self._payloads))
            self._number += 1
        self._db.write(batch, self._synced)
        return count

    def close(self) -> None:
        """Release the directory."""
        self._db.close()
