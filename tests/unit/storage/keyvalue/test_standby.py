"""Servers that open a new store on an object store at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from penstock.broker import BrokerOptions
from penstock.errors import NotWriter, StoreClosed, StoreFull, StoreUnavailable
from penstock.keepers.catch_up import CatchUp
from penstock.keepers.sweep import Sweep
from penstock.keepers.webhooks import WebhookCalls
from penstock.storage.contract import EngineOptions
from penstock.storage.engine_options import Role
from penstock.storage.keyvalue import standby
from penstock.storage.keyvalue.adapters.slatedb.location import parse_location
from penstock.storage.keyvalue.adapters.slatedb.writer_record import WriterRecord
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.standby import FailoverEngine
from penstock.testing.laws import law


def _writer(engine: FailoverEngine) -> str | None:
    return engine.role.writer


@law("S3")
async def test_one_writes_and_the_other_stands_by(tmp_path: Path) -> None:
    for number in range(4):
        url = urlsplit(f"slatedb+file://{tmp_path}/{number}?lease_ms=1000")
        engines = await asyncio.gather(
            *(
                FailoverEngine.open(parse_location(url), EngineOptions(), f"http://server-{name}")
                for name in ("a", "b")
            )
        )
        # A writer that was fenced notices at its next renewal.
        async with asyncio.timeout(20):
            while sorted(engine.role.name for engine in engines) != ["standby", "writer"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for engine in engines:
            await engine.close()


@law("S3")
async def test_a_server_that_stands_by_needs_its_cache_too(tmp_path: Path) -> None:
    location = parse_location(urlsplit(f"slatedb+file://{tmp_path}/store"))
    writer = await FailoverEngine.open(location, EngineOptions(), "http://one")
    (tmp_path / "file").touch()
    unusable = replace(location, cache_path=str(tmp_path / "file"))
    with pytest.raises(StoreUnavailable, match="cache"):
        await FailoverEngine.open(unusable, EngineOptions(), "http://two")
    await writer.close()


async def test_a_reader_follows_the_writer(tmp_path: Path) -> None:
    url = f"slatedb+file://{tmp_path}/store?lease_ms=500"
    writer, reading = (parse_location(urlsplit(url + rest)) for rest in ("", "&reader=true"))
    one = await FailoverEngine.open(writer, EngineOptions(), "http://one")
    reader = await FailoverEngine.open(reading, EngineOptions(), "http://reader")
    assert reader.role == Role("reader", "http://one")
    assert reader.role.is_standby
    with pytest.raises(NotWriter, match=r"only reads\. http://one writes to it"):
        await reader.delete_queue("t", "q")
    await one.close()
    async with asyncio.timeout(20):
        while _writer(reader) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    two = await FailoverEngine.open(writer, EngineOptions(), "http://two")
    async with asyncio.timeout(20):
        while _writer(reader) != "http://two":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await two.close()
    await reader.close()


async def test_a_server_that_cannot_write_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = parse_location(urlsplit(f"slatedb+file://{tmp_path}/store?lease_ms=500"))
    engine = await FailoverEngine.open(location, EngineOptions(), "http://one")

    async def refuse() -> None:
        raise StoreFull("The bucket is full.")

    monkeypatch.setattr(engine, "_take_over", refuse)
    engine._step_down("The last commit failed.")
    assert engine.role == Role("standby", None, "The last commit failed.")
    async with asyncio.timeout(20):
        while "full" not in engine.role.trouble:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    # Its own record is still the newest, but callers must not be sent here.
    assert engine.role == Role("standby", None, "The bucket is full.")
    with pytest.raises(NotWriter, match=r"cannot write now: The bucket is full\."):
        await engine.delete_queue("t", "q")
    own = WriterRecord(engine._id, "http://one", "here", 1, 1, lease_ms=500)
    monkeypatch.setattr(engine, "_record", own)
    monkeypatch.setattr(engine, "_trouble", "")
    assert engine.role == Role("standby", None)
    monkeypatch.undo()
    async with asyncio.timeout(20):
        while engine.role != Role("writer", "http://one"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await engine.close()


class _Watch:
    """A watch whose answers a test sets."""

    poll_s = 0.1

    def __init__(self) -> None:
        self.record = WriterRecord("1", "http://one", "elsewhere", 1, 1, lease_ms=1000)
        self.opened = 1

    def writer(self) -> WriterRecord:
        return self.record

    def epoch(self) -> int:
        return self.opened


async def test_a_server_that_opens_the_store_is_not_fenced_while_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renews its record only once it has opened the store."""
    location = parse_location(urlsplit(f"slatedb+file://{tmp_path}/store"))
    engine = FailoverEngine(location, EngineOptions(jitter=lambda _: 0), "http://two")
    watch, now = _Watch(), 0.0
    loop = SimpleNamespace(time=lambda: now)
    monkeypatch.setattr(engine, "_watch", watch)
    monkeypatch.setattr(engine, "_loop", loop)
    assert not await engine._is_vacant()
    now, watch.opened = 1.0, 2  # The lease has ended, and another server is quicker.
    assert not await engine._is_vacant()
    now = 2.9
    assert not await engine._is_vacant()
    now = 3.0  # It has ended before it could write.
    assert await engine._is_vacant()


async def test_a_call_that_outlives_the_writers_role_is_told_so(tmp_path: Path) -> None:
    """``StoreClosed`` would end the keepers, which are needed when this server writes again."""
    location = parse_location(urlsplit(f"slatedb+file://{tmp_path}/store?lease_ms=1000"))
    engine = await FailoverEngine.open(location, EngineOptions(), "http://one")
    writer = engine._writer
    assert writer is not None
    async with writer._sweeping:
        sweep = asyncio.create_task(engine.sweep(10))
        await asyncio.sleep(0)
        engine._step_down("The last commit failed.")
        await asyncio.wait(engine._closing)
    with pytest.raises(NotWriter):
        await sweep
    await engine.close()
    with pytest.raises(StoreClosed):
        await engine.sweep(10)


async def test_the_keepers_of_a_server_that_stands_by_do_not_open_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening reads every queue, which takes seconds of a deep store."""
    location = parse_location(urlsplit(f"slatedb+file://{tmp_path}/store?lease_ms=10000"))
    writer = await FailoverEngine.open(location, EngineOptions(), "http://one")
    engine = await FailoverEngine.open(location, EngineOptions(), "http://two")
    opened: list[object] = []

    async def open_view(*given: object) -> KeyValueEngine:
        opened.append(given)
        raise StoreUnavailable("not in this test")

    monkeypatch.setattr(standby, "open_view", open_view)
    for keeper in (Sweep(engine), CatchUp(engine), WebhookCalls(engine, BrokerOptions())):
        with pytest.raises(NotWriter):
            await keeper.run()
    assert opened == []
    await engine.close()
    await writer.close()


async def test_a_server_takes_over_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A panic of the binding is no error of SlateDB, and must not end the watch."""
    location = parse_location(urlsplit(f"slatedb+file://{tmp_path}/store?lease_ms=1000"))
    writer = await FailoverEngine.open(location, EngineOptions(), "http://one")
    engine = await FailoverEngine.open(location, EngineOptions(), "http://two")
    is_vacant, panics = engine._is_vacant, [RuntimeError("a panic")]

    async def panicking() -> bool:
        if panics:
            raise panics.pop()
        return await is_vacant()

    monkeypatch.setattr(engine, "_is_vacant", panicking)
    async with asyncio.timeout(20):
        while panics:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await writer.close()
        while engine.role.is_standby:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert "a panic" in caplog.text
    await engine.close()
