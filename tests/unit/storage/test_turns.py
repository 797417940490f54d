"""Turns: slices of long work, one at a time, round robin between tenants."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from penstock.storage import turns as module
from penstock.storage.turns import Slice, Turns


async def work(turns: Turns, tenant: str, slices: int, done: list[str]) -> None:
    for _ in range(slices):
        await turns.take(tenant)
        done.append(tenant)


async def test_tenants_have_their_turns_round_robin() -> None:
    """Three calls of one tenant cost another as much as one would."""
    turns = Turns()
    done: list[str] = []
    await asyncio.gather(
        *(work(turns, "loud", 4, done) for _ in range(3)), work(turns, "quiet", 4, done)
    )
    assert sorted(done) == ["loud"] * 12 + ["quiet"] * 4
    assert done[:8] == ["loud", "quiet"] * 4
    assert turns.granted == 16


async def test_one_slice_runs_in_a_turn_of_the_loop() -> None:
    turns = Turns()
    done: list[str] = []
    working = [asyncio.ensure_future(work(turns, str(n), 5, done)) for n in range(4)]
    seen = 0
    while not all(task.done() for task in working):
        await asyncio.sleep(0)
        assert len(done) - seen <= 1
        seen = len(done)


async def test_a_cancelled_caller_leaves_its_line() -> None:
    turns = Turns()
    done: list[str] = []
    first = asyncio.ensure_future(work(turns, "a", 100, done))
    second = asyncio.ensure_future(work(turns, "b", 3, done))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    await second
    assert done.count("b") == 3
    assert done.count("a") <= 1
    await work(turns, "c", 1, done)
    assert done[-1] == "c"


async def test_short_calls_have_the_loop_after_a_slice() -> None:
    """While one is under way, a pause follows as long as the slices before it took together."""
    turns = Turns()
    turns.short_calls = 1
    done: list[str] = []
    asked: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later
    times = count(0.0, 0.0004)

    def call_later(delay: float, *args: object) -> object:
        asked.append(delay)
        return later(delay, *args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", call_later)
        patch.setattr(loop, "time", lambda: next(times))
        await work(turns, "a", 6, done)
        assert asked
        assert all(0.001 <= delay <= 0.05 for delay in asked)
        asked.clear()
        turns.short_calls = 0
        await work(turns, "a", 6, done)
    assert asked == []
    assert done == ["a"] * 12


async def test_a_slice_asks_for_a_turn_when_its_time_is_up() -> None:
    turns = Turns(slice_s=60.0)
    await Slice(turns, "a").run(range(100))
    assert turns.granted == 0
    turns = Turns(slice_s=0.0)
    await Slice(turns, "a").run(range(100))
    assert turns.granted == 100


def test_a_loop_that_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may call asyncio.run several times; the first may end during a pause."""
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 60.0)
    turns = Turns()
    turns.short_calls = 1

    async def end_during_a_pause() -> None:
        turns._owed = 60.0
        await turns.take("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def once() -> bool:
        taking = asyncio.ensure_future(turns.take("a"))
        for _ in range(5):
            await asyncio.sleep(0)
        return taking.done()

    asyncio.run(end_during_a_pause())
    assert asyncio.run(once())
