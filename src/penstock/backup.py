"""Backups of key-value stores, and their restoration (X1).

A backup is a folder of numbered parts, with frames of items, and a file ``MANIFEST`` that is
written last: without it the backup is incomplete. The store may be served meanwhile: its records
are read from a view of one moment, so everything that was acknowledged before is in it. Formats are
in docs/formats.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from penstock.backup_files import BackupFiles, open_files
from penstock.copying import Copied, Report, copy_items, family_of, open_target
from penstock.errors import BackupCorrupt, BadUrl, SourceChanged, StoreError, StoreNotEmpty
from penstock.model.clock import Clock, SystemClock
from penstock.storage.transfer import Family, Item, Origin, Source, Totals, batches

if TYPE_CHECKING:
    from penstock.storage.dump import DumpRecord
    from penstock.storage.keyvalue.transfer.views import StoreView

__all__ = [
    "Manifest",
    "Part",
    "back_up",
    "decode_frames",
    "encode_frame",
    "read_manifest",
    "restore",
]

#: Bytes after which a part is complete. A part is in memory while it is written and read.
PART_BYTES: Final = 32 * 1024 * 1024
_MANIFEST: Final = "MANIFEST"
_FORMAT: Final = 1
#: How often the view is opened again if the store removes a file just then.
_TRIES: Final = 10
_VIEWS: Final = "penstock.storage.keyvalue.transfer.views"

_encode_items: Final = msgspec.msgpack.Encoder().encode
_decode_items: Final = msgspec.msgpack.Decoder(list[tuple[str, bytes, bytes]]).decode


class Part(Struct, frozen=True):
    """One part."""

    name: str
    size: int
    hash: str
    """XXH3-128 of its bytes."""


class Manifest(Struct, frozen=True):
    """What a complete backup consists of."""

    store: str
    """The identity of the store, in hexadecimal, and its epoch."""
    epoch: str
    engine: str
    began_at: int
    """Everything that was acknowledged before is in the backup."""
    parts: tuple[Part, ...]
    totals: Totals
    penstock: str = "backup"
    format: int = _FORMAT


# -- frames ----------------------------------------------------------------------------


def encode_frame(items: list[Item]) -> bytes:
    """Length u32, XXH3-64 u64, and the items in MessagePack."""
    body = _encode_items(items)
    head = len(body).to_bytes(4, "big") + xxh3_64_intdigest(body).to_bytes(8, "big")
    return head + body


def decode_frames(data: bytes, name: str) -> list[list[Item]]:
    """The items of every frame of a part."""
    found: list[list[Item]] = []
    position = 0
    while position < len(data):
        start = position + 12
        end = start + int.from_bytes(data[position : position + 4], "big")
        body = data[start:end]
        expected = int.from_bytes(data[position + 4 : start], "big")
        if end > len(data) or xxh3_64_intdigest(body) != expected:
            raise BackupCorrupt(f"{name} is damaged at byte {position}.")
        try:
            found.append([Item(*item) for item in _decode_items(body)])
        except msgspec.MsgspecError as error:
            raise BackupCorrupt(f"{name} is damaged at byte {position}: {error}.") from error
        position = end
    return found


# -- backup ----------------------------------------------------------------------------


def _silent(stage: str, items: int) -> None:
    del stage, items


async def back_up(
    url: str, place: str, report: Report = _silent, clock: Clock | None = None
) -> Manifest:
    """Write a backup of the store at ``url``, which may be served, to a new place."""
    if family_of(url) != "keyvalue":
        raise BadUrl(
            "A database is backed up in its own way (docs/operations.md); `penstock copy` copies "
            "its store.",
            field="store",
        )
    files = open_files(place)
    if await asyncio.to_thread(files.names):
        raise StoreNotEmpty(f"{files.name} has files already.", field="backup")
    now = (clock or SystemClock()).now()
    view = await _open_view(url)
    try:
        writer = await _write(view, files, report)
        manifest = Manifest(
            view.origin.store.hex(),
            view.origin.epoch.hex(),
            view.engine,
            now,
            tuple(writer.parts),
            writer.totals,
        )
    finally:
        await view.close()
    encoded = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
    await asyncio.to_thread(files.create, _MANIFEST, encoded)
    return manifest


async def _write(view: StoreView, files: BackupFiles, report: Report) -> _Writer:
    """Write the parts; again, if the view was not of one moment."""
    for left in range(_TRIES, 0, -1):
        writer = _Writer(files)
        async for batch in batches(view.items()):
            await writer.add(batch)
            report("backing up", writer.totals.items)
        await writer.flush()
        try:
            await view.check_unchanged()
        except SourceChanged:
            if left == 1:
                raise
            for part in writer.parts:
                await asyncio.to_thread(files.remove, part.name)
        else:
            return writer
    raise AssertionError("unreachable")


async def _open_view(url: str) -> StoreView:
    """A view; a file that the server removes while it is opened is no damage."""
    open_view: Callable[[str], StoreView] = import_module(_VIEWS).open_view
    for left in range(_TRIES, 0, -1):
        try:
            return await asyncio.to_thread(open_view, url)
        except StoreError:
            if left == 1:
                raise
    raise AssertionError("unreachable")


class _Writer:
    """Collects frames into parts."""

    def __init__(self, files: BackupFiles) -> None:
        self._files = files
        self._frames: list[bytes] = []
        self._size = 0
        self.parts: list[Part] = []
        self.totals = Totals()

    async def add(self, items: list[Item]) -> None:
        """Add items to the present part."""
        frame = encode_frame(items)
        self.totals.add(items)
        self._frames.append(frame)
        self._size += len(frame)
        if self._size >= PART_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write the present part."""
        if not self._frames:
            return
        data = b"".join(self._frames)
        part = Part(f"part-{len(self.parts) + 1:08}", len(data), xxh3_128_hexdigest(data))
        await asyncio.to_thread(self._files.create, part.name, data)
        self.parts.append(part)
        self._frames, self._size = [], 0


# -- restore ---------------------------------------------------------------------------


async def restore(place: str, url: str, report: Report = _silent) -> Copied:
    """Restore a backup into an empty store, or continue that; the store begins a new epoch."""
    if family_of(url) != "keyvalue":
        raise BadUrl(
            "A backup is restored into rocksdb:, files: or slatedb+…; `penstock copy` then copies "
            "it into a database.",
            field="store",
        )
    files = open_files(place)
    manifest = await asyncio.to_thread(read_manifest, files)
    source = _Backup(files, manifest)
    # All of it is checked before anything is written.
    checked = Totals()
    async for batch in batches(source.items()):
        checked.add(batch)
        report("checking", checked.items)
    if different := manifest.totals.difference(checked):
        raise BackupCorrupt(f"{files.name} differs from its manifest: {different}.")
    target = await open_target(url)
    try:
        return await copy_items(source, target, report)
    finally:
        await target.close()


def read_manifest(files: BackupFiles) -> Manifest:
    """The manifest, once every part is known to exist with its size."""
    try:
        manifest = msgspec.json.decode(files.read(_MANIFEST), type=Manifest)
    except FileNotFoundError:
        raise BackupCorrupt(f"{files.name} has no MANIFEST: it is not complete.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupCorrupt(f"The MANIFEST of {files.name} cannot be read: {error}.") from error
    if manifest.penstock != "backup" or manifest.format > _FORMAT:
        raise BackupCorrupt(
            f"{files.name} has format {manifest.format}; this Penstock reads up to {_FORMAT}."
        )
    missing = {part.name for part in manifest.parts}.difference(files.names())
    if missing:
        raise BackupCorrupt(f"{files.name} lacks {', '.join(sorted(missing))}.")
    return manifest


class _Backup(Source):
    """The items of a backup."""

    family: Family = "keyvalue"

    def __init__(self, files: BackupFiles, manifest: Manifest) -> None:
        self._files = files
        self._manifest = manifest
        try:
            store, epoch = bytes.fromhex(manifest.store), bytes.fromhex(manifest.epoch)
        except ValueError as error:
            raise BackupCorrupt(f"The MANIFEST of {files.name} is damaged.") from error
        self.origin = Origin(store, epoch, "keyvalue")

    async def items(self) -> AsyncIterator[Item]:
        for part in self._manifest.parts:
            data = await asyncio.to_thread(self._files.read, part.name)
            if len(data) != part.size or xxh3_128_hexdigest(data) != part.hash:
                raise BackupCorrupt(f"{part.name} of {self._files.name} is damaged.")
            for items in decode_frames(data, part.name):
                for item in items:
                    yield item

    def dump(self) -> AsyncIterator[DumpRecord]:
        raise NotImplementedError("a backup is restored into its own family")

    async def check_unchanged(self) -> None:
        """The parts were compared with the manifest while they were read."""

    async def close(self) -> None:
        """Nothing to release."""
