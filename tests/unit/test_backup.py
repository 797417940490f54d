"""Backups: what was acknowledged before is in them, and damaged ones restore nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
import pytest

from penstock import backup as backups
from penstock.backup import back_up, decode_frames, encode_frame, restore
from penstock.backup_files import open_files
from penstock.errors import (
    BackupCorrupt,
    BackupUnavailable,
    BadUrl,
    StoreNotEmpty,
    StoreUnavailable,
    StoreUnfinished,
)
from penstock.model.delivery import Ack
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start
from penstock.storage import transfer
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters.files.adapter import FilesAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.transfer.stores import KeyValueTarget
from penstock.storage.keyvalue.transfer.views import StoreView
from penstock.storage.transfer import Item, Origin
from penstock.testing.clock import FakeClock
from penstock.testing.comparing import difference
from penstock.testing.laws import law
from tests.copied_stores import TENANT, behaviour, fill_store, opened, sides
from tests.object_stores import BUCKET, s3_endpoint

SCHEMES = ("rocksdb", "files", "slatedb+file")


@law("X1")
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_served_store_is_restored_as_it_was(scheme: str, tmp_path: Path) -> None:
    clock, other = FakeClock(), FakeClock()
    store = await opened(f"{scheme}://{tmp_path}/store", clock)
    held = await fill_store(store, clock)
    other.advance(clock.now() - other.now())
    await back_up(f"{scheme}://{tmp_path}/store", f"{tmp_path}/backup")
    for target in ("rocksdb", "files"):
        url = f"{target}://{tmp_path}/{target}-restored"
        await restore(f"{tmp_path}/backup", url)
        restored = await opened(url, other)
        assert await sides(store, restored) is None
        one, new = await store.identity(TENANT), await restored.identity(TENANT)
        assert (one.store, one.epoch != new.epoch) == (new.store, True)
        if target == "files":
            expected = await behaviour(store, clock, held)
            assert difference(expected, await behaviour(restored, other, held)) is None
        await restored.close()
    await store.close()


@law("P2")
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_nothing_that_was_acknowledged_before_is_missing(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While publishes, claims and the tables behind them go on."""
    monkeypatch.setattr(backups, "PART_BYTES", 1024 * 1024)
    store = await open_engine(f"{scheme}://{tmp_path}/store")
    await store.put_queue(TENANT, "all", QueuePolicy(filter="TRUE"), Start())
    acknowledged: list[int] = []
    halfway, over = asyncio.Event(), asyncio.Event()

    async def publish() -> None:
        number = 0
        while not over.is_set():
            batch = [NewMessage(b"%08d" % (number + nth) + bytes(8_000)) for nth in range(50)]
            await store.publish(TENANT, "t", batch)
            number += len(batch)
            acknowledged.append(number)
            if number >= 1_000:
                halfway.set()

    publishing = asyncio.create_task(publish())
    await halfway.wait()
    before = acknowledged[-1]
    manifest = await back_up(f"{scheme}://{tmp_path}/store", f"{tmp_path}/backup")
    assert len(manifest.parts) > 1
    over.set()
    await publishing
    await store.close()
    await restore(f"{tmp_path}/backup", f"rocksdb://{tmp_path}/restored")
    restored = await open_engine(f"rocksdb://{tmp_path}/restored")
    page = await restored.read_log(TENANT, Offset(0), 1_000_000, payloads=True)
    numbers = [int((entry.payload or b"")[:8]) for entry in page.entries]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= before
    assert (await restored.stats(TENANT, "all")).available == len(numbers)
    await restored.close()


@law("X1")
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_retention_goes_on_while_a_backup_is_made(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    store = await opened(f"{scheme}://{tmp_path}/store", clock)
    for number in range(3):
        await store.publish(TENANT, "t", [NewMessage(b"%d" % number)])
        (delivery,) = await store.claim(TENANT, "t", "w", 1, 60_000)
        await store.settle(TENANT, "t", [Ack(delivery.receipt)])
        clock.advance(13 * 3600 * 1000)
    await store.close()  # From now on a store in files has no payloads in its journal.
    store = await opened(f"{scheme}://{tmp_path}/store", clock)

    async def retain() -> None:
        while (await store.sweep(1_000)).more:
            pass
        assert len((await store.read_log(TENANT, Offset(0), 10)).entries) == 1
        assert isinstance(store, KeyValueEngine)
        if isinstance(store.core.adapter, FilesAdapter):
            await asyncio.to_thread(store.core.adapter.flush)

    open_view = backups._open_view

    async def opened_before(url: str) -> StoreView:
        view = await open_view(url)
        await retain()
        return view

    monkeypatch.setattr(backups, "_open_view", opened_before)
    await back_up(f"{scheme}://{tmp_path}/store", f"{tmp_path}/backup")
    await restore(f"{tmp_path}/backup", f"rocksdb://{tmp_path}/restored")
    restored = await opened(f"rocksdb://{tmp_path}/restored", FakeClock())
    page = await restored.read_log(TENANT, Offset(0), 10_000, payloads=True)
    assert [entry.payload for entry in page.entries] == [b"0", b"1", b"2"]
    await restored.close()
    await store.close()
    if scheme == "files":
        assert len([*(tmp_path / "store/messages").glob("*/*")]) == 1


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """A small backup of several parts."""
    store = await open_engine(f"rocksdb://{tmp_path}/store")
    await store.publish(TENANT, "t", [NewMessage(bytes(100)) for _ in range(50)])
    await store.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backups, "PART_BYTES", 100)
        patch.setattr(transfer, "BATCH_ITEMS", 40)
        await back_up(f"rocksdb://{tmp_path}/store", f"{tmp_path}/backup")
    return tmp_path / "backup"


async def _refused(backup: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupCorrupt):
        await restore(str(backup), f"rocksdb://{tmp_path}/restored")
    assert not (tmp_path / "restored").exists()


@law("X1")
@pytest.mark.parametrize("damage", ["missing", "cut", "emptied", "swapped", "longer"])
async def test_a_damaged_part_restores_nothing(backup: Path, tmp_path: Path, damage: str) -> None:
    first, second = backup / "part-00000001", backup / "part-00000002"
    content = first.read_bytes()
    match damage:
        case "missing":
            first.unlink()
        case "cut":
            first.write_bytes(content[:-1])
        case "emptied":
            first.write_bytes(b"")
        case "swapped":
            first.write_bytes(second.read_bytes())
        case "longer":
            first.write_bytes(content + second.read_bytes())
    await _refused(backup, tmp_path)


@law("X1")
async def test_every_flipped_bit_is_noticed(backup: Path, tmp_path: Path) -> None:
    for path in (backup / "part-00000002", backup / "MANIFEST"):
        content = path.read_bytes()
        for at in range(0, len(content), max(1, len(content) // 12)):
            damaged = bytearray(content)
            damaged[at] ^= 1 << at % 8
            if path.name == "MANIFEST" and not _matters(bytes(damaged), content):
                continue
            path.write_bytes(damaged)
            await _refused(backup, tmp_path)
        path.write_bytes(content)


def _matters(damaged: bytes, content: bytes) -> bool:
    """Whether a change of the manifest is not only one of the facts that describe the backup."""
    try:
        before, after = (msgspec.json.decode(text) for text in (content, damaged))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return bool(before["parts"] != after.get("parts") or before["totals"] != after.get("totals"))


async def test_without_a_manifest_a_backup_is_not_complete(backup: Path, tmp_path: Path) -> None:
    (backup / "MANIFEST").unlink()
    await _refused(backup, tmp_path)


async def test_nothing_is_overwritten(backup: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreNotEmpty):
        await back_up(f"rocksdb://{tmp_path}/store", str(backup))
    with pytest.raises(StoreNotEmpty):
        await restore(str(backup), f"rocksdb://{tmp_path}/store")
    store = await open_engine(f"rocksdb://{tmp_path}/store")
    assert len((await store.read_log(TENANT, Offset(0), 100)).entries) == 50
    await store.close()


async def test_what_cannot_be_backed_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await back_up(f"rocksdb://{tmp_path}/missing", f"{tmp_path}/backup")
    with pytest.raises(BadUrl, match="in its own way"):
        await back_up("postgresql://localhost/penstock", f"{tmp_path}/backup")
    with pytest.raises(BadUrl, match="penstock copy"):
        await restore(f"{tmp_path}/backup", "postgresql://localhost/penstock")
    with pytest.raises(BadUrl, match="neither a folder"):
        await back_up(f"rocksdb://{tmp_path}/missing", "ftp://host/backup")
    target = KeyValueTarget(FilesAdapter(tmp_path / "half"))
    await target.begin(Origin(bytes(16), bytes(16), "keyvalue"))
    await target.close()
    with pytest.raises(StoreUnfinished):
        await back_up(f"files://{tmp_path}/half", f"{tmp_path}/backup")


async def test_a_place_that_cannot_be_used_is_a_typed_error(backup: Path, tmp_path: Path) -> None:
    store = f"rocksdb://{tmp_path}/store"
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BackupUnavailable, match="Not a directory"):
        await back_up(store, f"{tmp_path}/file")
    with pytest.raises(BackupUnavailable, match="Not a directory"):
        await back_up(store, f"{tmp_path}/file/below")
    with pytest.raises(BackupUnavailable, match="Not a directory"):
        await restore(f"{tmp_path}/file", f"rocksdb://{tmp_path}/restored")
    (backup / "part-00000001").unlink()
    (backup / "part-00000001").mkdir()
    with pytest.raises(BackupUnavailable, match="Is a directory"):
        await restore(str(backup), f"rocksdb://{tmp_path}/restored")
    settings = "scheme=http&region=us-east-1&endpoint_override="
    nowhere = f"s3://key:secret@{BUCKET}/x?{settings}127.0.0.1%3A1"
    with pytest.raises(BackupUnavailable) as refused:
        await restore(nowhere, f"rocksdb://{tmp_path}/restored")
    assert "secret" not in refused.value.detail
    host = quote(urlsplit(s3_endpoint()).netloc, safe="")
    with pytest.raises(BackupUnavailable, match=r"(?i)no_?such_?bucket"):
        await back_up(store, f"s3://key:secret@missing/x?{settings}{host}")


async def test_a_bucket_holds_a_backup(backup: Path, tmp_path: Path) -> None:
    host = quote(urlsplit(s3_endpoint()).netloc, safe="")
    settings = f"endpoint_override={host}&scheme=http&region=us-east-1"
    place = f"s3://key:secret@{BUCKET}/backups/{tmp_path.name}?{settings}"
    assert "secret" not in open_files(place).name
    await back_up(f"rocksdb://{tmp_path}/store", place)
    await restore(place, f"files://{tmp_path}/restored")
    restored = await open_engine(f"files://{tmp_path}/restored")
    assert len((await restored.read_log(TENANT, Offset(0), 100)).entries) == 50
    await restored.close()


def test_a_frame_is_what_formats_md_says() -> None:
    items = [Item("payload", bytes.fromhex("01010000000000000000"), b"w")]
    encoded = encode_frame(items)
    page = "".join(Path("docs/formats.md").read_text(encoding="utf-8").split())
    assert encoded.hex() in page
    assert decode_frames(encoded + encoded, "part") == [items, items]
    with pytest.raises(BackupCorrupt, match="at byte 0"):
        decode_frames(encoded[:-1], "part")
