"""Interruptions: what cuts a waiting call, and what does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.server.interruption import Interrupted, Interruption, StopSignal


async def interrupted_by(begin: Callable[[Interruption], object]) -> None:
    """Wait forever, after ``begin`` has been called."""
    with Interruption() as interruption:
        begin(interruption)
        await asyncio.Event().wait()


def cancellations() -> int:
    """How many cancellations of this task were asked for and not taken back."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_cut_ends_the_block():
    loop = asyncio.get_running_loop()
    with pytest.raises(Interrupted):
        await interrupted_by(lambda interruption: loop.call_soon(interruption.cut))
    assert cancellations() == 0


async def test_a_cut_after_the_block_does_nothing():
    with Interruption() as interruption:
        asyncio.get_running_loop().call_soon(interruption.cut)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert cancellations() == 0


async def test_a_cut_that_the_block_ignores_leaves_no_cancellation():
    with Interruption() as interruption:
        interruption.cut()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert cancellations() == 0


async def test_a_cancellation_from_elsewhere_is_not_swallowed():
    begun: list[Interruption] = []
    task = asyncio.ensure_future(interrupted_by(begun.append))
    await asyncio.sleep(0)
    begun[0].cut()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_stop_signal_cuts_what_waits():
    stopping = StopSignal()
    asyncio.get_running_loop().call_soon(stopping.set)
    with pytest.raises(Interrupted):
        await interrupted_by(stopping.waiting.add)
    assert stopping.is_set()
