"""Snapshots: all records of a store, without payloads, as they were when a journal began.

A snapshot is a file of frames: the title, then parts of about 1 MiB, the last of which says so. It
is written under another name, synced and renamed, so an incomplete one is damage.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.storage.keyvalue.adapters.files.frames import (
    Buffer,
    DamagedFrame,
    TornFrame,
    encode_frame,
    read_frames,
)
from penstock.storage.keyvalue.adapters.files.journal import (
    ChainEnd,
    Title,
    fsync_folder,
    new_title,
    read_title,
)
from penstock.storage.keyvalue.adapters.store_folder import FILE_MODE

__all__ = ["Part", "read_snapshot", "snapshot_path", "write_snapshot"]

_PART_BYTES: Final = 1024 * 1024
_PART_OFFSETS: Final = 100_000


class Part(Struct, frozen=True, array_like=True):
    """The body of a frame of a snapshot."""

    records: dict[bytes, bytes] = {}
    offsets: list[int] = []
    """Of the payloads that the store has, in order."""
    is_last: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Part)


def snapshot_path(folder: Path, number: int) -> Path:
    """Where a snapshot is."""
    return folder / f"{number:010}.snapshot"


def write_snapshot(
    folder: Path,
    number: int,
    after: ChainEnd,
    records: Mapping[bytes, bytes],
    offsets: array[int],
    *,
    clean: bool = False,
) -> int:
    """Write the snapshot durably; returns its size."""
    title = replace(
        new_title("snapshot", number), clean=clean, after=after.sequence, hash=after.hash.hex()
    )
    path = snapshot_path(folder, number)
    temporary = path.with_suffix(".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, FILE_MODE), "wb") as file:
            size = 0
            raw, digest = encode_frame(0, 0, after.hash, msgspec.json.encode(title) + b"\n")
            for sequence, part in enumerate(_parts(records, offsets), 1):
                size += file.write(raw)
                raw, digest = encode_frame(sequence, 0, digest, _encode(part), size, title.salt)
            size += file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    temporary.rename(path)
    fsync_folder(folder)
    return size


def _parts(records: Mapping[bytes, bytes], offsets: array[int]) -> Iterator[Part]:
    part: dict[bytes, bytes] = {}
    size = 0
    for key, value in records.items():
        part[key] = value
        size += len(key) + len(value)
        if size >= _PART_BYTES:
            yield Part(part)
            part, size = {}, 0
    yield Part(part)
    numbers = iter(offsets)
    while numbers_part := list(islice(numbers, _PART_OFFSETS)):
        yield Part({}, numbers_part)
    yield Part(is_last=True)


def read_snapshot(buffer: Buffer, number: int) -> tuple[Title, Iterator[Part]]:
    """The title and the parts of a snapshot. Both raise ``DamagedFrame``."""
    try:
        title, first = read_title(buffer, "snapshot", number)
    except TornFrame as error:
        raise DamagedFrame(str(error)) from error

    def parts() -> Iterator[Part]:
        try:
            for frame in read_frames(buffer, first, title.salt):
                part = _decoder.decode(frame.body)
                yield part
                if part.is_last:
                    return
        except (TornFrame, msgspec.DecodeError) as error:
            raise DamagedFrame(str(error)) from error
        raise DamagedFrame("the end of the file is missing")

    return title, parts()
