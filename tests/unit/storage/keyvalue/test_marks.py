"""When marks are written, and what waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from penstock.errors import CommitFailed
from penstock.model.message import NewMessage
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue import chain, marks
from penstock.storage.keyvalue.adapters import KeyRange, Mark, Writes
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from penstock.testing.laws import law


async def open_on(adapter: FaultyAdapter) -> KeyValueEngine:
    return await KeyValueEngine.open(adapter, EngineOptions(clock=FakeClock()))


async def publish(engine: KeyValueEngine, count: int, durability: str = "fsync") -> None:
    for _ in range(count):
        await engine.publish("default", "t", [NewMessage(b"x")], durability)


def numbers(adapter: FaultyAdapter) -> list[int]:
    return [mark.number for _, mark in adapter.marks]


async def test_the_first_commit_the_last_one_and_some_between_are_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marks, "COMMITS_PER_MARK", 10)
    adapter = FaultyAdapter()
    engine = await open_on(adapter)
    await publish(engine, 34)
    assert numbers(adapter) == [1, 11, 21, 31]
    await engine.close()
    assert numbers(adapter) == [1, 11, 21, 31, 35]


@law("P1")
async def test_a_commit_that_is_not_synced_is_not_marked() -> None:
    adapter = FaultyAdapter()
    engine = await open_on(adapter)
    await publish(engine, 5, "os")
    engine._committer._marks.write()  # type: ignore[union-attr]
    assert numbers(adapter) == [1]
    await publish(engine, 1)
    engine._committer._marks.write()  # type: ignore[union-attr]
    assert numbers(adapter) == [1, 7]
    await engine.close()


class SlowMarks(FaultyAdapter):
    """Marks wait at a gate, and can be refused."""

    def __init__(self) -> None:
        super().__init__(inline=False)
        self.gate = threading.Semaphore(1)
        self.written = threading.Semaphore(0)
        self.refusal: OSError | None = None

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        super().write(writes, removed, sync)
        self.written.release()

    def mark(self, mark: Mark) -> None:
        assert self.gate.acquire(timeout=60)
        if self.refusal is not None:
            raise self.refusal
        super().mark(mark)


@law("X1")
async def test_commits_wait_when_the_ring_is_full_of_unmarked_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marks, "COMMITS_PER_MARK", 4)
    monkeypatch.setattr(chain, "RING", 16)
    adapter = SlowMarks()
    engine = await open_on(adapter)
    work = asyncio.create_task(publish(engine, 40))
    for _ in range(16):
        assert await asyncio.to_thread(adapter.written.acquire, timeout=60)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(adapter.journal) == 16, "a link that the mark names was replaced"
    adapter.gate.release(100)
    await work
    await engine.close()
    survivor = await open_on(adapter.survivor(len(adapter.journal)))
    await survivor.close()


async def test_a_mark_that_cannot_be_written_fails_commits_only_when_the_ring_is_full(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(marks, "COMMITS_PER_MARK", 4)
    monkeypatch.setattr(chain, "RING", 16)
    adapter = SlowMarks()
    adapter.gate.release(1000)
    engine = await open_on(adapter)
    await publish(engine, 1)
    adapter.refusal = OSError(28, "No space left on device")
    with pytest.raises(CommitFailed):
        await publish(engine, 40)
    assert "could not be written" in caplog.text
    adapter.refusal = None
    await engine.close()
