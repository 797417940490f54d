"""Bodies: bounded in size, in time, and together (E1)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import Busy, SlowRequest, TooLarge
from penstock.server.budget import Budget, Hold
from penstock.server.request_parsing import Bodies, Disconnected
from penstock.storage.timeouts import Timeouts


def feeding(*parts: bytes, then: str = "end"):
    """A ``receive`` that gives these parts, then hangs, ends or hangs up."""
    waiting = list(parts)

    async def receive():
        if waiting:
            part = waiting.pop(0)
            return {
                "type": "http.request",
                "body": part,
                "more_body": bool(waiting) or then != "end",
            }
        if then == "hang":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return receive


def bodies(**changes) -> Bodies:
    return Bodies(**{"body_bytes": 10, "timeout_s": 5.0, **changes})


def held() -> Hold:
    return Hold(Budget(1_000))


LENGTH = {b"content-type": b"x/y"}


async def test_a_body_in_parts_is_joined():
    assert await bodies().read(feeding(b"ab", b"cd", b"e"), LENGTH, held()) == b"abcde"


async def test_a_body_of_the_announced_length_needs_no_end():
    read = bodies().read(feeding(b"ab", then="hang"), {b"content-length": b"2"}, held())
    async with asyncio.timeout(60):
        assert await read == b"ab"


async def test_no_body_is_not_waited_for():
    assert await bodies().read(feeding(then="hang"), {}, held()) == b""
    assert await bodies().read(feeding(then="hang"), {b"content-length": b"0"}, held()) == b""


@pytest.mark.parametrize(
    "headers, parts",
    [
        ({b"content-length": b"11"}, [b"x"]),
        ({b"content-length": b"9" * 30}, [b"x"]),
        (LENGTH, [b"x" * 11]),
        (LENGTH, [b"x" * 6, b"x" * 6]),
    ],
)
async def test_a_body_over_the_limit_is_refused(headers, parts):
    with pytest.raises(TooLarge):
        await bodies().read(feeding(*parts), headers, held())


async def test_a_caller_that_leaves_half_way_is_noticed():
    with pytest.raises(Disconnected):
        await bodies().read(feeding(b"x", then="leave"), LENGTH, held())


async def test_bodies_together_are_bounded():
    budget = Budget(15)
    hanging = asyncio.ensure_future(
        bodies().read(feeding(b"x" * 9, then="hang"), LENGTH, Hold(budget))
    )
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await bodies().read(feeding(b"x" * 5, b"x" * 4, b"x"), LENGTH, Hold(budget))
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_a_slow_body_is_given_up(monkeypatch):
    monkeypatch.setattr("penstock.storage.timeouts._LOOK_S", 0.01)
    with pytest.raises(SlowRequest):
        await bodies(timeout_s=0.05).read(feeding(b"x", then="hang"), LENGTH, held())


async def test_patience_lets_a_real_cancellation_through(monkeypatch):
    monkeypatch.setattr("penstock.storage.timeouts._LOOK_S", 0.01)
    timeouts = Timeouts(60.0)
    task = asyncio.ensure_future(timeouts.run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
