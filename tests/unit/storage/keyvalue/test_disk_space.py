"""The low-water mark of the disk: publishes are refused, everything else goes on."""

from __future__ import annotations

import logging

import pytest

from penstock.errors import StoreFull
from penstock.model.delivery import Ack
from penstock.model.limits import Limits
from penstock.model.message import NewMessage
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


def test_of_a_small_disk_a_twentieth_has_to_be_free() -> None:
    disk = Disk()
    disk.free_bytes = 50
    DiskSpace(disk, 100).check(0)
    disk.free_bytes = 49
    with pytest.raises(StoreFull):
        DiskSpace(disk, 100).check(0)
