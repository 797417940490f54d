"""The writer of a disk: which writes run on the event loop, and which on the thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from penstock.storage.keyvalue.writer import DiskWriter, WouldWait

SMALL, LARGE = 1_000, 256 * 1024 + 1


class Disk:
    """Notes on which thread it writes. Each write takes as long as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writer = DiskWriter()
        self.seconds = 0.0
        self.stalls = False
        self.failure: BaseException | None = None
        self._now = 0.0
        self._loop_thread = threading.get_ident()
        self._on_loop: list[bool] = []
        monkeypatch.setattr(f"{DiskWriter.__module__}.time.perf_counter", lambda: self._now)

    def _write(self, patient: bool = True) -> Exception | None:
        if self.failure is not None:
            raise self.failure
        if self.stalls and not patient:
            return WouldWait()
        self._now += self.seconds
        self._on_loop.append(threading.get_ident() == self._loop_thread)
        return None

    async def write(self, size: int = SMALL) -> tuple[bool, Exception | None]:
        """Write once; returns whether that was on the loop, and the error."""
        written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.writer.submit(self._write, written.set_result, size)
        error = await written
        return bool(self._on_loop and self._on_loop[-1]), error


@pytest.fixture
async def disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    await disk.writer.close()


async def test_small_writes_are_on_the_loop_while_the_disk_is_fast(disk: Disk) -> None:
    assert await disk.write() == (False, None), "nothing is known of the disk yet"
    assert await disk.write() == (True, None)
    assert await disk.write(LARGE) == (False, None)
    disk.seconds = 0.002
    assert await disk.write() == (True, None)
    assert await disk.write() == (False, None)
    disk.seconds = 0.0
    assert await disk.write() == (False, None)
    assert await disk.write() == (True, None)


async def test_a_write_that_would_wait_is_on_the_thread(disk: Disk) -> None:
    await disk.write()
    disk.stalls = True
    assert await disk.write() == (False, None)
    disk.stalls = False
    assert await disk.write() == (True, None)


async def test_a_panic_on_the_loop_fails_its_write_only(disk: Disk) -> None:
    await disk.write()
    disk.failure = BaseException("panic")
    _, error = await disk.write()
    assert isinstance(error, RuntimeError)
    disk.failure = None
    assert await disk.write() == (True, None)


def test_an_interrupt_during_a_write_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The callers learn that their commit failed, and then Ctrl-C does what it always does."""
    failed: list[Exception | None] = []

    async def program() -> None:
        disk = Disk(monkeypatch)
        await disk.write()
        disk.failure = KeyboardInterrupt()
        failed.append((await disk.write())[1])
        for _ in range(3):
            await asyncio.sleep(0)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(program())
    assert [type(error) for error in failed] == [RuntimeError]
