from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from penstock.errors import CommitFailed, NotEncoded, StoreClosed, StoreCorrupt
from penstock.storage.keyvalue.adapters import KeyRange, Writes
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.committer import Committer
from penstock.storage.keyvalue.long_changes import LongChanges
from penstock.storage.keyvalue.notifications import Notifier
from penstock.storage.keyvalue.stage import Stage
from penstock.storage.keyvalue.writer import InlineWriter, Write, Written
from penstock.storage.listener import Listener
from penstock.testing.laws import law

#: Only a test that would hang for ever waits this long.
HANG_S = 60.0


class Disk(MemoryAdapter):
    """A store with a thread of its own, whose writes wait at a gate and can be refused."""

    durability = "fsync"
    unsynced = "os"
    inline = False

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.batches: list[dict[bytes, bytes | None]] = []
        self.synced: list[bool] = []
        self.refusal: BaseException | None = None

    def try_write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> bool:
        return False

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        self.begun.release()
        assert self.gate.acquire(timeout=HANG_S)
        if self.refusal is not None:
            raise self.refusal
        self.batches.append(dict(writes))
        self.synced.append(sync)
        super().write(writes, removed, sync)

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=HANG_S)


class Ear(Listener):
    """Remembers the commits it was told of, and on which thread."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.threads: set[int] = set()

    def committed(self, records: int, seconds: float) -> None:
        assert 0 <= seconds < HANG_S
        self.records.append(records)
        self.threads.add(threading.get_ident())


class Rig:
    """A committer with its stage and its disk."""

    def __init__(self, disk: MemoryAdapter) -> None:
        self.disk = disk
        self.stage = Stage(disk)
        self.completed: list[int] = []
        self.notifier = Notifier()
        self.ear = self.notifier.listener = Ear()
        self.committer = Committer(disk, self.stage, self.completed.append, self.notifier)

    def put(self, key: bytes, *, sync: bool = True) -> asyncio.Task[str]:
        """What a verb does: change the stage in one go, then wait for the commit."""

        async def verb() -> str:
            self.committer.check()
            self.stage.put(key, b"")
            return await self.committer.commit(sync=sync)

        return asyncio.create_task(verb())


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def rig(disk: Disk) -> AsyncIterator[Rig]:
    rig = Rig(disk)
    yield rig
    disk.gate.release(1000)
    await rig.committer.close()


async def _let_run() -> None:
    """Let every task that can run now get as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


@law("P1")
async def test_a_reply_waits_for_its_commit(rig: Rig, disk: Disk) -> None:
    task = rig.put(b"a")
    await disk.until_begun()
    await _let_run()
    assert not task.done()
    assert rig.completed == []
    disk.gate.release()
    assert await task == "fsync"
    assert disk.batches == [{b"a": b""}]
    assert rig.completed == [1]


async def test_what_arrives_during_a_commit_goes_into_the_next_one(rig: Rig, disk: Disk) -> None:
    first = rig.put(b"a")
    await disk.until_begun()
    others = [rig.put(bytes((number,))) for number in range(10)]
    await _let_run()
    disk.gate.release()
    await first
    assert not any(task.done() for task in others)
    disk.gate.release()
    assert await asyncio.gather(*others) == ["fsync"] * 10
    assert [len(batch) for batch in disk.batches] == [1, 10]
    assert rig.completed == [1, 2]


async def test_verbs_of_one_turn_share_a_commit(rig: Rig, disk: Disk) -> None:
    tasks = [rig.put(bytes((number,))) for number in range(10)]
    disk.gate.release()
    await asyncio.gather(*tasks)
    assert [len(batch) for batch in disk.batches] == [10]


async def test_a_caller_that_is_first_is_answered_before_the_others(rig: Rig, disk: Disk) -> None:
    answered: list[str] = []

    async def verb(name: str, *, is_first: bool = False) -> None:
        rig.stage.put(name.encode(), b"")
        await rig.committer.commit(is_first=is_first)
        answered.append(name)

    disk.gate.release()
    await asyncio.gather(verb("publish"), verb("claim", is_first=True), verb("settle"))
    assert answered == ["claim", "publish", "settle"]
    assert len(disk.batches) == 1


async def test_only_a_commit_that_nobody_wants_synced_is_not(rig: Rig, disk: Disk) -> None:
    disk.gate.release(2)
    assert await rig.put(b"a", sync=False) == "os"
    both = [rig.put(b"b", sync=False), rig.put(b"c", sync=True)]
    assert await asyncio.gather(*both) == ["fsync", "fsync"]
    assert disk.synced == [False, True]


async def test_memory_promises_nothing_more_than_memory() -> None:
    rig = Rig(MemoryAdapter())
    assert await rig.put(b"a", sync=False) == "memory"
    assert await rig.put(b"b", sync=True) == "memory"
    assert rig.disk.get(b"b") == b""
    await rig.committer.close()


@law("P2")
async def test_a_refused_commit_fails_its_waiters_and_everyone_after(rig: Rig, disk: Disk) -> None:
    disk.refusal = OSError("no space left on device")
    first = rig.put(b"a")
    await disk.until_begun()
    second = rig.put(b"b")
    await _let_run()
    disk.gate.release()
    for task in (first, second):
        with pytest.raises(CommitFailed, match="no space left"):
            await task
    with pytest.raises(CommitFailed, match="no space left"):
        rig.committer.check()
    with pytest.raises(CommitFailed):
        await rig.committer.commit()
    assert disk.batches == []
    assert rig.completed == []


class Panic(BaseException):
    """What the binding raises when its Rust panics: no Exception."""


async def test_a_panic_below_the_store_fails_its_waiters(rig: Rig, disk: Disk) -> None:
    disk.refusal = Panic("index out of bounds")
    disk.gate.release()
    for _ in range(2):
        with pytest.raises(CommitFailed, match="index out of bounds"):
            await asyncio.wait_for(rig.put(b"a"), HANG_S)
    await rig.committer.close()


async def test_every_waiter_gets_an_error_of_its_own(rig: Rig, disk: Disk) -> None:
    """A shared exception would collect the tracebacks of all who raise it."""
    disk.refusal = OSError("disk")
    tasks = rig.put(b"a"), rig.put(b"b")
    disk.gate.release()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [CommitFailed, CommitFailed]
    assert errors[0] is not errors[1]


async def test_an_error_of_our_own_keeps_its_class(rig: Rig, disk: Disk) -> None:
    disk.refusal = StoreCorrupt("bad block")
    disk.gate.release()
    with pytest.raises(StoreCorrupt, match="bad block"):
        await rig.put(b"a")


async def test_a_record_that_cannot_be_encoded_stops_the_store(rig: Rig, disk: Disk) -> None:
    class Broken:
        def write_to(self, stage: Stage) -> int:
            raise ZeroDivisionError("encoding")

    rig.stage.mark(Broken())
    with pytest.raises(NotEncoded, match="encoding"):
        await rig.put(b"a")
    with pytest.raises(NotEncoded):
        rig.committer.check()
    assert disk.batches == []


async def test_a_cancelled_waiter_does_not_disturb_the_others(rig: Rig, disk: Disk) -> None:
    tasks = rig.put(b"a"), rig.put(b"b")
    await disk.until_begun()
    tasks[0].cancel()
    disk.gate.release()
    assert await tasks[1] == "fsync"
    assert disk.batches == [{b"a": b"", b"b": b""}]


async def test_a_committed_batch_is_let_go(rig: Rig, disk: Disk) -> None:
    """Reads go to the store again, and the batch can be freed."""
    disk.gate.release(2)
    await rig.put(b"a")
    disk.write({b"a": b"as stored"}, [], sync=True)
    assert rig.stage.get(b"a") == b"as stored"


async def test_settled_waits_for_what_is_under_way(rig: Rig, disk: Disk) -> None:
    task = rig.put(b"a")
    await disk.until_begun()
    reader = asyncio.create_task(rig.committer.settled())
    await _let_run()
    assert not reader.done()
    disk.gate.release(2)
    await reader
    assert task.done()


async def test_settled_costs_nothing_when_nothing_is_staged(rig: Rig, disk: Disk) -> None:
    await rig.committer.settled()
    assert disk.batches == []
    assert not disk.begun.acquire(blocking=False)


async def test_close_commits_what_is_staged(rig: Rig, disk: Disk) -> None:
    rig.stage.put(b"a", b"")
    disk.gate.release()
    await rig.committer.close()
    assert disk.batches == [{b"a": b""}]
    with pytest.raises(StoreClosed):
        rig.committer.check()


async def test_close_after_a_failure_is_quiet(rig: Rig, disk: Disk) -> None:
    disk.refusal = OSError("disk")
    disk.gate.release()
    with pytest.raises(CommitFailed):
        await rig.put(b"a")
    await rig.committer.close()
    with pytest.raises(CommitFailed):
        rig.committer.check()


async def test_a_verb_that_meets_a_close_is_answered(rig: Rig, disk: Disk) -> None:
    """Committed or refused, but not left waiting for ever."""
    first = rig.put(b"a")
    await disk.until_begun()
    closing = asyncio.create_task(rig.committer.close())
    await _let_run()
    with pytest.raises(StoreClosed):
        await rig.put(b"late")
    rig.stage.put(b"staged before it was told", b"")
    late = rig.committer.commit()
    disk.gate.release(10)
    await first
    await late
    await closing
    assert disk.batches[-1] == {b"staged before it was told": b""}
    with pytest.raises(StoreClosed):
        await rig.committer.commit()


async def test_a_batch_is_whole_in_the_store_when_readers_are_told(disk: Disk) -> None:
    seen: list[bytes | None] = []
    stage = Stage(disk)

    def look(number: int) -> None:
        seen.append(disk.get(b"%d" % number))

    committer = Committer(disk, stage, look, Notifier())
    disk.gate.release(10)
    for number in (1, 2):
        stage.put(b"%d" % number, b"in")
        await committer.commit()
    assert seen == [b"in", b"in"]
    assert committer.completed == 2
    await committer.close()


async def test_work_staged_meanwhile_is_committed_without_asking(rig: Rig, disk: Disk) -> None:
    task = rig.put(b"a")
    await disk.until_begun()
    rig.stage.put(b"b", b"")
    disk.gate.release(2)
    await task
    await disk.until_begun()
    await rig.committer.settled()
    assert disk.get(b"b") == b""


async def test_the_listener_hears_of_every_commit_on_the_loop(rig: Rig, disk: Disk) -> None:
    first = rig.put(b"a")
    await disk.until_begun()
    others = [rig.put(bytes((number,))) for number in range(10)]
    await _let_run()
    assert rig.ear.records == []
    disk.gate.release(2)
    await first
    await asyncio.gather(*others)
    assert rig.ear.records == [1, 10]
    assert rig.ear.threads == {threading.get_ident()}


async def test_the_listener_does_not_hear_of_commits_that_write_nothing(
    rig: Rig, disk: Disk
) -> None:
    disk.gate.release(2)
    await rig.put(b"a")
    await rig.committer.commit()
    await rig.put(b"b")
    assert rig.ear.records == [1, 1]


async def test_the_listener_does_not_hear_of_a_refused_commit(rig: Rig, disk: Disk) -> None:
    disk.refusal = OSError("disk")
    disk.gate.release()
    with pytest.raises(CommitFailed):
        await rig.put(b"a")
    assert rig.ear.records == []


async def test_the_listener_hears_of_commits_in_memory_too() -> None:
    rig = Rig(MemoryAdapter())
    await rig.put(b"a")
    await rig.put(b"b")
    assert rig.ear.records == [1, 1]
    await rig.committer.close()


# -- listeners that raise --------------------------------------------------------------------


class Broken(Listener):
    """Raises on every commit."""

    def committed(self, records: int, seconds: float) -> None:
        raise RuntimeError("committed")


@law("P1")
async def test_a_listener_that_raises_is_logged_and_everyone_is_answered(
    rig: Rig, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    rig.notifier.listener = Broken()
    disk.gate.release(2)
    first = rig.put(b"a")
    await disk.until_begun()
    second = rig.put(b"b")
    for waiter in (first, second):
        assert await asyncio.wait_for(waiter, HANG_S) == "fsync"
    assert disk.batches == [{b"a": b""}, {b"b": b""}]
    assert "committed" in caplog.text


@law("S3")
async def test_when_the_engine_fails_after_a_commit_its_callers_are_answered_and_it_stops(
    disk: Disk,
) -> None:
    """The commit is durable, so its waiters are told so; memory is not to be trusted any more."""

    def fail(_: int) -> None:
        raise KeyError("bucket")

    stage = Stage(disk)
    committer = Committer(disk, stage, fail, Notifier())
    stage.put(b"a", b"")
    first = committer.commit()
    await disk.until_begun()
    stage.put(b"b", b"")
    second = committer.commit()
    disk.gate.release()
    assert await asyncio.wait_for(first, HANG_S) == "fsync"
    with pytest.raises(StoreCorrupt):
        await asyncio.wait_for(second, HANG_S)
    with pytest.raises(StoreCorrupt):
        committer.check()
    await committer.close()
    assert disk.batches == [{b"a": b""}]


class HeldWriter(InlineWriter):
    """A writer whose writes end when the test says so. After it is closed it takes no more."""

    def __init__(self) -> None:
        self.open = True
        self.written: list[Callable[[], None]] = []

    def submit(self, write: Write, written: Written, size: int) -> None:
        assert self.open
        self.written.append(lambda: written(write()))

    async def close(self) -> None:
        self.open = False


async def _cancel_while_closing(committer: Committer) -> None:
    closing = asyncio.ensure_future(committer.close())
    await _let_run()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_a_close_that_is_cancelled_begins_no_other_commit() -> None:
    """A thread that has ended would never take the batch, and the loop would wait for it."""
    adapter, writer = MemoryAdapter(), HeldWriter()
    stage = Stage(adapter)
    committer = Committer(adapter, stage, lambda _: None, Notifier(), writer)
    stage.put(b"a", b"")
    first = committer.commit()
    await _let_run()
    assert writer.written
    stage.put(b"b", b"")
    second = committer.commit()
    await _cancel_while_closing(committer)
    writer.written.pop()()
    await _let_run()
    assert await first == "memory"
    with pytest.raises(StoreClosed):
        await second
    assert not writer.written


async def test_a_close_that_is_cancelled_while_a_commit_is_encoded_writes_nothing() -> None:
    adapter, writer, changes = MemoryAdapter(), HeldWriter(), LongChanges(0.0)
    stage = Stage(adapter)
    committer = Committer(adapter, stage, lambda _: None, Notifier(), writer, changes=changes)
    changes.under_way = True
    stage.put(b"a", b"")
    commit = committer.commit()
    await _cancel_while_closing(committer)
    changes.finish_later(iter(()))
    with pytest.raises(StoreClosed):
        await commit
    assert not writer.open
    assert not writer.written
