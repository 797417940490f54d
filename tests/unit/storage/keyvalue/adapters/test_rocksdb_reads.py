"""Reads of a large store load little more than the block that has the record."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter

#: The filter of one file with so many records is larger than a shard of the cache.
RECORDS = 1_000_000
READS = 200


def key(number: int) -> bytes:
    return b"\x10test" + number.to_bytes(8, "big")


def bytes_read() -> int:
    """What this process has read from files, cached by the system or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


@pytest.mark.slow
def test_a_read_does_not_load_the_whole_filter(tmp_path: Path) -> None:
    chance = Random(1)
    store = RocksDBAdapter(tmp_path / "store")
    for start in range(0, RECORDS, 10_000):
        store.write(
            {key(number): chance.randbytes(12) for number in range(start, start + 10_000)},
            (),
            sync=False,
        )
    store.close()
    store = RocksDBAdapter(tmp_path / "store")
    before = bytes_read()
    for _ in range(READS):
        assert store.get(key(chance.randrange(RECORDS)))
    each = (bytes_read() - before) / READS
    store.close()
    assert each < 64 * 1024, f"{each:.0f} bytes"
