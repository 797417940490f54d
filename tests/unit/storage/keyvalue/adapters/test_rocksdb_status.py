"""RocksDB's errors are told apart by the status in front, whatever the path in them contains."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.errors import StoreCorrupt, StoreLocked, StoreUnavailable
from penstock.storage.keyvalue.adapters.rocksdb_status import (
    is_stall,
    opening_error,
    reading_error,
    writing_error,
)

APPENDING = "While appending to file: /srv/install/corruption: truncated/000012.log: "
#: A path that contains every word that an error could be mistaken by.
PATH = Path("/srv/install/corruption: truncated")


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"IO error: No space left on device: {APPENDING}No space left on device", errno.ENOSPC),
        ("IO error: Space limit reached: Max allowed space was reached", errno.ENOSPC),
        (f"IO error: {APPENDING}Input/output error", errno.EIO),
        (f"IO error: {APPENDING}/No space left on device/LOG: Input/output error", errno.EIO),
    ],
)
def test_a_refused_write_has_an_errno_and_is_no_stall(text: str, expected: int) -> None:
    error = Exception(text)
    assert not is_stall(error)
    assert writing_error(error).errno == expected
    assert text in str(writing_error(error))


def test_a_stall_is_told_by_its_status() -> None:
    assert is_stall(Exception("Result incomplete: Write stall"))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Corruption: block checksum mismatch", StoreCorrupt),
        (f"IO error: While lock file: {PATH}/LOCK: Resource temporarily unavailable", StoreLocked),
        ("IO error: lock hold by current process, acquire time 17", StoreLocked),
        (f"IO error: While open a file: {PATH}/lock file: Permission denied", StoreUnavailable),
    ],
)
def test_why_a_store_does_not_open(text: str, expected: type[Exception]) -> None:
    assert type(opening_error(PATH, Exception(text))) is expected


def test_why_a_read_fails() -> None:
    damaged = reading_error(Exception("Corruption: truncated record body"))
    assert type(damaged) is StoreCorrupt
    unreadable = f"IO error: While pread in file {PATH}/000010.sst: Input/output error"
    assert type(reading_error(Exception(unreadable))) is StoreUnavailable
