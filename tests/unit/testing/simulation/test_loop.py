from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator

import pytest

from penstock.testing.simulation.loop import EPOCH_MS, Deadlock, SimulatedClock, SimulatedLoop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = make_loop(1)
    yield loop
    loop.close()


def make_loop(seed: int) -> SimulatedLoop:
    return SimulatedLoop(seed)  # type: ignore[abstract]


def order_of(seed: int, work: Callable[[list[int]], Awaitable[None]]) -> tuple[list[int], str]:
    loop = make_loop(seed)
    order: list[int] = []
    loop.run_until_complete(work(order))
    loop.close()
    return order, loop.trace


async def _three(order: list[int]) -> None:
    async def append(number: int) -> None:
        for _ in range(4):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(append(number) for number in range(3)))


def test_a_seed_repeats_and_another_is_another_order() -> None:
    assert order_of(7, _three) == order_of(7, _three)
    assert len({order_of(seed, _three)[1] for seed in range(20)}) == 20


def test_time_is_virtual_and_timers_fire_in_order(loop: SimulatedLoop) -> None:
    clock = SimulatedClock(loop)
    woken: list[int] = []

    async def sleep(ms: int) -> None:
        await asyncio.sleep(ms / 1000)
        assert clock.now() >= EPOCH_MS + ms
        woken.append(ms)

    async def main() -> None:
        await asyncio.gather(*(sleep(ms) for ms in (3_600_000, 5_000, 86_400_000)))

    loop.run_until_complete(main())
    assert woken == [5_000, 3_600_000, 86_400_000]


def test_a_clock_calls_back_at_its_time(loop: SimulatedLoop) -> None:
    clock = SimulatedClock(loop)

    async def main() -> int:
        rung = asyncio.Event()
        clock.call_at(clock.now() + 12_345, rung.set)
        await rung.wait()
        return clock.now()

    assert loop.run_until_complete(main()) >= EPOCH_MS + 12_345


def test_a_thread_is_work_that_arrives_later(loop: SimulatedLoop) -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 3)

    assert loop.run_until_complete(main()) == 3


def test_what_can_never_end_is_said_to(loop: SimulatedLoop) -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        loop.run_until_complete(main())


def test_an_error_in_a_callback_is_kept(loop: SimulatedLoop) -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        loop.call_soon(fail)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert len(loop.errors) == 1
    assert "ValueError" in loop.errors[0]


def test_a_task_that_never_began_ends_with_the_loop_without_a_warning() -> None:
    async def never() -> None:
        raise AssertionError

    loop = make_loop(1)
    task = loop.create_task(never())
    loop.close()
    del task, loop
    gc.collect()
