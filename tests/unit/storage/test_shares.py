"""Shares: what is under way is bounded, and divided equally between the tenants that are active."""

from __future__ import annotations

import asyncio

import pytest

from penstock.storage import shares as module
from penstock.storage.shares import LARGE, Shares
from penstock.storage.turns import Turns

CAPACITY = 1_200
#: Small enough not to need a turn.
COST = 300


class Calls:
    """Calls that end when they are told to."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.shares = Shares(self.turns, CAPACITY)
        self.began: list[str] = []
        self._ends: list[tuple[str, asyncio.Event]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, tenant: str, cost: int = COST) -> asyncio.Task[None]:
        """Make a call; it stays under way until ``end``."""
        task = asyncio.get_running_loop().create_task(self._call(tenant, cost))
        self._tasks.append(task)
        return task

    async def _call(self, tenant: str, cost: int) -> None:
        if not self.shares.enter(tenant, cost):
            await self.shares.wait(tenant, cost)
        try:
            self.began.append(tenant)
            ended = asyncio.Event()
            self._ends.append((tenant, ended))
            await ended.wait()
        finally:
            self.shares.leave(tenant, cost)

    def end(self, tenant: str) -> None:
        """End the oldest call of the tenant."""
        place = next(n for n, (name, _) in enumerate(self._ends) if name == tenant)
        self._ends.pop(place)[1].set()

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def end_all(self) -> None:
        while any(not task.done() for task in self._tasks):
            while self._ends:
                self._ends.pop()[1].set()
            await asyncio.sleep(0)


@pytest.fixture
async def calls() -> Calls:
    return Calls()


async def test_one_tenant_alone_has_all_of_the_capacity(calls: Calls) -> None:
    for _ in range(6):
        calls.begin("a")
    await calls.settle()
    assert calls.began == ["a"] * 4
    calls.end("a")
    await calls.settle()
    assert calls.began == ["a"] * 5
    await calls.end_all()
    assert calls.turns.short_calls == 0


async def test_a_tenant_with_nothing_under_way_does_not_wait(calls: Calls) -> None:
    for _ in range(10):
        calls.begin("loud")
    await calls.settle()
    calls.begin("quiet")
    await calls.settle()
    assert calls.began.count("quiet") == 1
    await calls.end_all()


async def test_the_capacity_is_divided_between_those_who_are_active(calls: Calls) -> None:
    for tenant in ("a", "b"):
        for _ in range(10):
            calls.begin(tenant)
    await calls.settle()
    assert calls.began == ["a"] * 4 + ["b"] * 2  # The first came alone.
    for _ in range(4):
        calls.end("a")
        await calls.settle()
    calls.end("b")
    await calls.settle()
    assert calls.began.count("b") == 3
    under_way = {tenant: calls.shares._under_way[tenant] for tenant in ("a", "b")}
    assert under_way == {"a": CAPACITY // 2, "b": CAPACITY // 2}
    await calls.end_all()


async def test_a_call_that_is_larger_than_its_part_goes_alone(calls: Calls) -> None:
    calls.begin("a", 10 * CAPACITY)
    calls.begin("a", 10 * CAPACITY)
    await calls.settle()
    assert calls.began == ["a"]
    calls.end("a")
    await calls.settle()
    assert calls.began == ["a", "a"]
    await calls.end_all()


async def test_a_large_call_waits_for_a_turn_if_others_are_active(calls: Calls) -> None:
    calls.begin("loud", LARGE)
    await calls.settle()
    assert calls.turns.granted == 0
    calls.begin("quiet", 1)
    await calls.settle()
    calls.end("loud")
    await calls.settle()
    calls.begin("loud", LARGE)
    await calls.settle()
    assert calls.turns.granted == 1
    await calls.end_all()


async def test_cancelled_calls_leave_their_places(calls: Calls) -> None:
    first = [calls.begin("a") for _ in range(4)]
    waiting = [calls.begin("a") for _ in range(3)]
    await calls.settle()
    waiting[0].cancel()
    first[0].cancel()
    await calls.settle()
    assert calls.began == ["a"] * 5
    assert waiting[1].done() is False
    # One that is let in and cancelled in the same turn of the loop gives its place on.
    calls.end("a")
    await asyncio.sleep(0)
    waiting[2].cancel()
    await calls.settle()
    await calls.end_all()
    assert calls.turns.short_calls == 0
    assert calls.shares._under_way == {}
    assert calls.shares._lines == {}


async def test_idle_tenants_give_their_part_back(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.begin("quiet")
    await calls.settle()
    calls.end("quiet")
    await calls.settle()
    for _ in range(4):
        calls.begin("loud")
    await calls.settle()
    assert calls.began.count("loud") == 2
    monkeypatch.setattr(module, "_LINGER_S", -1.0)
    calls.begin("loud")
    calls.end("loud")
    await calls.settle()
    assert calls.began.count("loud") == 5
    await calls.end_all()
