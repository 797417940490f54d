"""Copies of whole stores: the copy is what the source was, whatever engines the two have."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from itertools import count, permutations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.copying import copy_store
from penstock.errors import (
    BadUrl,
    PenstockError,
    SourceChanged,
    StoreLocked,
    StoreNotEmpty,
    StoreUnavailable,
    StoreUnfinished,
)
from penstock.model.message import NewMessage
from penstock.storage import transfer
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters.files import journal
from penstock.testing.clock import FakeClock
from penstock.testing.comparing import Plain, difference
from penstock.testing.laws import law
from tests.copied_stores import OTHER, TENANT, behaviour, fill_store, opened, sides
from tests.databases import empty_url
from tests.object_stores import s3_endpoint, s3_keys, s3_url

ENGINES = ("rocksdb", "slatedb", "files", "postgresql", "mysql")
_NUMBERS = count()


def url_of(engine: str, folder: Path) -> str:
    """A place where no store is yet."""
    number = next(_NUMBERS)
    if engine in {"postgresql", "mysql"}:
        return empty_url(engine, f"copies_{number}")
    scheme = "slatedb+file" if engine == "slatedb" else engine
    return f"{scheme}://{folder}/{engine}-{number}"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, str]]]:
    """A filled store of every engine, and receipts of its deliveries in flight."""
    folder = tmp_path_factory.mktemp("sources")

    async def fill(engine: str) -> tuple[str, dict[str, str]]:
        url = url_of(engine, folder)
        if engine in {"postgresql", "mysql"}:
            from penstock.storage.sql.migrations import migrate

            await migrate(url)
        clock = FakeClock()
        store = await opened(url, clock)
        held = await fill_store(store, clock)
        await store.close()
        return url, held

    return {engine: asyncio.run(fill(engine)) for engine in ENGINES}


@pytest.fixture(scope="module")
def expected() -> dict[str, Plain]:
    """What a store does that was never copied."""

    async def act() -> dict[str, Plain]:
        clock = FakeClock()
        store = await opened("memory://", clock)
        held = await fill_store(store, clock)
        shown = await behaviour(store, clock, held)
        await store.close()
        return shown

    return asyncio.run(act())


def now() -> FakeClock:
    """The time at which the sources were closed."""
    clock = FakeClock()
    clock.advance(29_060)
    return clock


@law("X1")
@pytest.mark.parametrize("origin, engine", list(permutations(ENGINES, 2)))
async def test_a_copy_is_like_its_source(
    sources: dict[str, tuple[str, dict[str, str]]],
    expected: dict[str, Plain],
    origin: str,
    engine: str,
    tmp_path: Path,
) -> None:
    source, held = sources[origin]
    target = url_of(engine, tmp_path)
    done = await copy_store(source, target)
    assert not done.continued
    clock = now()
    before, copy = await opened(source, clock), await opened(target, clock)
    assert await sides(before, copy) is None
    one, other = await before.identity(TENANT), await copy.identity(TENANT)
    assert one.epoch != other.epoch
    assert (one.store != other.store) == done.renumbered
    await before.close()
    assert difference(expected, await behaviour(copy, clock, held)) is None
    await copy.close()


async def test_a_copy_of_a_copy(
    sources: dict[str, tuple[str, dict[str, str]]],
    expected: dict[str, Plain],
    tmp_path: Path,
) -> None:
    """Receipts survive every switch, not only the first."""
    url, held = sources["rocksdb"]
    for engine in ("postgresql", "rocksdb", "mysql", "files"):
        target = url_of(engine, tmp_path)
        await copy_store(url, target)
        url = target
    clock = now()
    before, copy = await opened(sources["rocksdb"][0], clock), await opened(url, clock)
    assert await sides(before, copy) is None
    await before.close()
    assert difference(expected, await behaviour(copy, clock, held)) is None
    await copy.close()


# -- refusals --------------------------------------------------------------------------


async def refused(kind: type[PenstockError], source: str, target: str) -> None:
    with pytest.raises(kind):
        await copy_store(source, target)


@pytest.mark.parametrize("engine", ["rocksdb", "postgresql"])
async def test_only_an_empty_store_is_a_target(
    sources: dict[str, tuple[str, dict[str, str]]], engine: str, tmp_path: Path
) -> None:
    target = sources[engine][0]
    await refused(StoreNotEmpty, sources["files"][0], target)
    store = await open_engine(target)
    assert await store.list_queues(OTHER)
    await store.close()


@pytest.mark.parametrize("engine", ["rocksdb", "slatedb", "files", "mysql"])
async def test_a_store_in_use_is_not_copied(
    sources: dict[str, tuple[str, dict[str, str]]], engine: str, tmp_path: Path
) -> None:
    store = await opened(sources[engine][0], now())
    await refused(StoreLocked, sources[engine][0], f"rocksdb://{tmp_path}/copy")
    await store.close()


async def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    target = f"rocksdb://{tmp_path}/copy"
    for scheme in ("rocksdb", "files", "slatedb+file"):
        await refused(StoreUnavailable, f"{scheme}://{tmp_path}/missing", target)
    await refused(BadUrl, "memory://", target)
    await refused(BadUrl, f"rocksdb://{tmp_path}/missing", "http://localhost")
    assert not (tmp_path / "missing").exists()
    missing = urlsplit(s3_url(s3_endpoint()))
    await refused(StoreUnavailable, missing.geturl(), target)
    assert s3_keys(s3_endpoint(), missing.path[1:]) == []


async def test_a_store_opened_for_reading_is_neither_copied_nor_written(tmp_path: Path) -> None:
    url = f"slatedb+file://{tmp_path}/store"
    await (await open_engine(url)).close()
    await refused(BadUrl, f"{url}?reader=true", f"rocksdb://{tmp_path}/copy")
    await refused(BadUrl, url, f"slatedb+file://{tmp_path}/copy?reader=true")


# -- interruptions ---------------------------------------------------------------------

#: Copies with small batches, and kills itself at the nth write or at the end.
PROGRAM = """
import asyncio, os, signal, sys
from penstock import copying
from penstock.storage import transfer

source, target, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
transfer.BATCH_ITEMS = 8
open_target, writes = copying.open_target, 0

async def opened(url):
    found = await open_target(url)
    write, finish = found.write, found.finish

    async def counted(items, progress):
        global writes
        writes += 1
        if writes == at:
            os.kill(os.getpid(), signal.SIGKILL)
        await write(items, progress)

    async def finished(store, epoch):
        os.kill(os.getpid(), signal.SIGKILL)

    found.write, found.finish = counted, finished
    return found

copying.open_target = opened
asyncio.run(copying.copy_store(source, target))
"""


@law("X1")
@pytest.mark.parametrize(
    "origin, engine",
    [("rocksdb", "files"), ("files", "postgresql"), ("mysql", "rocksdb"), ("postgresql", "mysql")],
)
async def test_a_killed_copy_is_continued(
    sources: dict[str, tuple[str, dict[str, str]]],
    expected: dict[str, Plain],
    monkeypatch: pytest.MonkeyPatch,
    origin: str,
    engine: str,
    tmp_path: Path,
) -> None:
    source, held = sources[origin]
    target = url_of(engine, tmp_path)
    for at in (1, 2, 4, 10_000):  # The last one is killed when it finishes.
        command = [sys.executable, "-c", PROGRAM, source, target, str(at)]
        killed = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60)
        assert killed.returncode == -9, killed.stderr.decode()
        with pytest.raises(StoreUnfinished):
            await open_engine(target)
    monkeypatch.setattr(transfer, "BATCH_ITEMS", 8)
    done = await copy_store(source, target)
    assert done.continued
    clock = now()
    before, copy = await opened(source, clock), await opened(target, clock)
    assert await sides(before, copy) is None
    await before.close()
    assert difference(expected, await behaviour(copy, clock, held)) is None
    await copy.close()


async def test_a_source_that_went_on_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Half of a copy of yesterday and half of today would be no copy."""
    source, target = f"rocksdb://{tmp_path}/source", f"files://{tmp_path}/target"
    clock = FakeClock()
    store = await opened(source, clock)
    await store.publish(TENANT, "t", [NewMessage(b"one", id="i")])
    await store.close()
    command = [sys.executable, "-c", PROGRAM, source, target, "10000"]
    await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60)
    store = await opened(source, clock)
    assert len(await store.claim(TENANT, "t", "w", 1, 60_000)) == 1
    await store.close()
    monkeypatch.setattr(transfer, "BATCH_ITEMS", 8)
    await refused(SourceChanged, source, target)
    other = f"rocksdb://{tmp_path}/other"
    store = await opened(other, clock)
    await store.close()
    await refused(StoreNotEmpty, other, target)


async def test_a_copy_that_is_cancelled_in_the_middle_of_a_write_is_continued(
    sources: dict[str, tuple[str, dict[str, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by Ctrl-C: the target is closed once its thread has ended the write."""
    monkeypatch.setattr(transfer, "BATCH_ITEMS", 10)
    source, target = sources["postgresql"][0], url_of("files", tmp_path)
    written, go_on = threading.Event(), threading.Event()
    original = journal.ChainEnd

    def slow(*given: Any) -> journal.ChainEnd:
        """The end of the frame that was just appended, which the journal does not know yet."""
        if threading.current_thread() is not threading.main_thread() and not written.is_set():
            written.set()
            go_on.wait(60)
        return original(*given)

    monkeypatch.setattr(journal, "ChainEnd", slow)
    copying = asyncio.create_task(copy_store(source, target))
    assert await asyncio.to_thread(written.wait, 60)
    copying.cancel()
    await asyncio.wait({copying}, timeout=0.5)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert (await copy_store(source, target)).continued
    clock = now()
    before, copy = await opened(source, clock), await opened(target, clock)
    assert await sides(before, copy) is None
    await before.close()
    await copy.close()
