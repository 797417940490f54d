"""The low-water mark of the disk: publishes are refused, everything else goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.errors import StoreFull
from penstock.model.delivery import Ack, ReplaySource
from penstock.model.limits import Limits
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions, Outgoing
from penstock.storage.keyvalue.disk_space import DiskSpace
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter

LOW, ENOUGH = 256 * 1024 * 1024 - 1, 256 * 1024 * 1024
MESSAGE = [NewMessage(b"x")]


async def test_publishes_are_refused_while_claims_and_acks_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter, clock = FaultyAdapter(), FakeClock()
    engine = await KeyValueEngine.open(adapter, EngineOptions(clock=clock))
    await engine.publish("default", "t", [*MESSAGE, *MESSAGE])
    adapter.free_bytes = LOW
    clock.advance(1000)
    with caplog.at_level(logging.WARNING), pytest.raises(StoreFull) as caught:
        await engine.publish("default", "t", MESSAGE)
    assert (caught.value.status, caught.value.retryable) == (507, True)
    assert "publishes are refused" in caplog.text
    first, second = await engine.claim("default", "t", "c", 2, None)
    with pytest.raises(StoreFull):
        await engine.settle("default", "t", [Ack(first.receipt)], [Outgoing("t", MESSAGE)])
    reply = await engine.settle("default", "t", [Ack(first.receipt), Ack(second.receipt)])
    assert all(outcome.ok for outcome in reply.outcomes)
    adapter.free_bytes = ENOUGH
    clock.advance(1000)
    await engine.publish("default", "t", MESSAGE)
    assert "publishes are accepted" in caplog.text
    await engine.close()


async def test_the_bound_can_be_moved_and_switched_off() -> None:
    for wanted, free, is_refused in ((0, 0, False), (10, 9, True), (10, 10, False)):
        adapter = FaultyAdapter()
        adapter.free_bytes = free
        options = EngineOptions(clock=FakeClock(), limits=Limits(free_disk_bytes=wanted))
        engine = await KeyValueEngine.open(adapter, options)
        if is_refused:
            with pytest.raises(StoreFull):
                await engine.publish("default", "t", MESSAGE)
        else:
            await engine.publish("default", "t", MESSAGE)
        await engine.close()


async def test_bulk_verbs_stop_at_half_of_the_mark_and_go_on_when_there_is_room() -> None:
    """A queue that is behind would fill the rest of the disk, and end the store."""
    adapter, clock = FaultyAdapter(), FakeClock()
    engine = await KeyValueEngine.open(adapter, EngineOptions(clock=clock), slice_size=10)
    await engine.publish("default", "t", MESSAGE * 30)
    await engine.put_queue("default", "late", QueuePolicy(filter="TRUE"), Start(Start.EARLIEST))
    adapter.free_bytes = ENOUGH // 2
    clock.advance(1000)
    with pytest.raises(StoreFull):
        await engine.publish("default", "t", MESSAGE)
    # The log cannot be removed before it is routed, so that goes on for a while.
    assert (await engine.route("default", "late", 10)).assigned == 10
    adapter.free_bytes -= 1
    for source in (ReplaySource.FAILED, ReplaySource.LOG):
        with pytest.raises(StoreFull):
            await engine.replay("default", "t", source, None, 10)
    await engine.replay("default", "t", ReplaySource.LOG, None, 10, dry_run=True)
    with pytest.raises(StoreFull):
        await engine.route("default", "late", 10)
    place, end = Offset(10), Offset(11)
    with pytest.raises(StoreFull):
        await engine.assign("default", "late", filter="TRUE", start=place, end=end, offsets=[place])
    assert len(await engine.claim("default", "late", "c", 20, None)) == 10
    adapter.free_bytes = ENOUGH
    assert (await engine.route("default", "late", 30)).assigned == 20
    await engine.close()


async def test_a_bulk_verb_stops_where_it_finds_the_disk_used_up() -> None:
    """What was done until then stays done, and is known."""
    adapter, clock = FaultyAdapter(), FakeClock()
    engine = await KeyValueEngine.open(adapter, EngineOptions(clock=clock), slice_size=10)
    await engine.publish("default", "t", MESSAGE * 30)
    for verb in ("route", "replay"):
        adapter.free_bytes = ENOUGH
        clock.advance(1000)
        name = f"for_{verb}"
        policy = QueuePolicy(filter="TRUE")
        await engine.put_queue("default", name, policy, Start(Start.EARLIEST))
        if verb == "route":
            working = asyncio.ensure_future(engine.route("default", name, 30))
        else:
            await engine.route("default", name, 30)
            await engine.purge("default", name, State.AVAILABLE, None, 30)
            replay = engine.replay("default", name, ReplaySource.LOG, None, 30)
            working = asyncio.ensure_future(replay)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        adapter.free_bytes = 0
        await asyncio.wait([working])
        available = (await engine.stats("default", name)).available
        assert 10 <= available < 30
        if verb == "route":
            assert (working.result().assigned, working.result().cursor) == (available, available)
        else:
            assert isinstance(working.exception(), StoreFull)
    await engine.close()


class Disk(FaultyAdapter):
    """Counts how often it is asked."""

    asked = 0

    def space(self) -> tuple[int, int]:
        self.asked += 1
        return self.free_bytes, 1000


def test_the_disk_is_asked_once_a_second_and_when_time_goes_back() -> None:
    disk = Disk()
    disk.free_bytes = 1000
    space = DiskSpace(disk, 100)
    for now in (0, 1, 999, 1000, 1001, 500, 501):
        space.check(now)
    assert disk.asked == 3


def test_near_the_mark_every_publish_asks() -> None:
    """A second is long: callers may write more than the mark in it."""
    disk = Disk()
    space = DiskSpace(disk, 40)
    disk.free_bytes = 159
    space.check(0)
    disk.free_bytes = 39
    with pytest.raises(StoreFull):
        space.check(1)
    disk.free_bytes = 40
    space.check(2)


def test_of_a_small_disk_a_twentieth_has_to_be_free() -> None:
    disk = Disk()
    disk.free_bytes = 50
    DiskSpace(disk, 100).check(0)
    disk.free_bytes = 49
    with pytest.raises(StoreFull):
        DiskSpace(disk, 100).check(0)
