from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from penstock.client.call_batcher import CallBatcher
from penstock.client.options import ClientOptions
from penstock.errors import BadInput, Forbidden, QueueFull, StoreClosed, Unreachable
from penstock.testing.laws import law

#: Long enough that a test which waits for it fails by its own time-out.
NEVER_MS = 60_000


class Wire:
    """Records the batches that leave, and answers when the test says so."""

    def __init__(self, **options: int) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.refuse: set[int] = set()
        self.failure: Exception | None = None
        self._left = asyncio.Event()
        self.batcher: CallBatcher[str, int, str] = CallBatcher(
            self.send, replace(ClientOptions(linger_ms=NEVER_MS), **options)
        )

    async def send(self, kind: str, items: list[int]) -> Sequence[str]:
        self.batches.append((kind, items))
        self._left.set()
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        if self.refuse.intersection(items):
            raise BadInput("One of them.", field="item")
        return [f"{kind}{item}" for item in items]

    def add(self, item: int, kind: str = "t", size: int = 1) -> asyncio.Future[str]:
        return self.batcher.add(kind, item, size)

    async def leaves(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.batches) < count:
                self._left.clear()
                await self._left.wait()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_shares_a_request() -> None:
    wire = Wire()
    answers = await asyncio.gather(*(wire.add(n) for n in range(5)))
    assert answers == ["t0", "t1", "t2", "t3", "t4"]
    assert wire.batches == [("t", [0, 1, 2, 3, 4])]


async def test_a_lone_item_waits_for_nobody() -> None:
    """The linger is a minute, and both are answered within the test's few seconds."""
    wire = Wire()
    async with asyncio.timeout(60):
        await wire.add(1)
        await wire.add(2)
    assert wire.batches == [("t", [1]), ("t", [2])]


async def test_kinds_are_apart() -> None:
    wire = Wire()
    await asyncio.gather(wire.add(1, "t"), wire.add(2, "u"), wire.add(3, "t"))
    assert sorted(wire.batches) == [("t", [1, 3]), ("u", [2])]


async def test_items_wait_while_enough_requests_are_under_way_and_leave_when_one_returns() -> None:
    wire = Wire(max_under_way=2)
    wire.open.clear()
    first = wire.add(1)
    await wire.leaves(1)
    second = wire.add(2)
    await wire.leaves(2)
    waiting = [wire.add(n) for n in (3, 4)]
    await turns()
    assert len(wire.batches) == 2
    wire.open.set()
    async with asyncio.timeout(60):
        await asyncio.gather(first, second, *waiting)
    assert wire.batches == [("t", [1]), ("t", [2]), ("t", [3, 4])]


async def test_who_was_just_answered_comes_along_with_who_waited() -> None:
    wire = Wire(max_under_way=1)
    wire.open.clear()

    async def twice() -> None:
        await wire.add(1)
        await wire.add(2)

    task = asyncio.create_task(twice())
    await wire.leaves(1)
    waiting = wire.add(3)
    wire.open.set()
    async with asyncio.timeout(60):
        await asyncio.gather(task, waiting)
    assert wire.batches[0] == ("t", [1])
    assert sorted(wire.batches[1][1]) == [2, 3]


async def test_the_linger_ends_the_wait() -> None:
    wire = Wire(max_under_way=1, linger_ms=1)
    wire.open.clear()
    wire.add(1)
    await wire.leaves(1)
    wire.add(2)
    await wire.leaves(2)
    assert wire.batches == [("t", [1]), ("t", [2])]
    wire.open.set()
    await wire.batcher.drain()


async def test_a_batch_is_bounded_by_number() -> None:
    wire = Wire(max_batch=3)
    await asyncio.gather(*(wire.add(n) for n in range(7)))
    assert [items for _, items in wire.batches] == [[0, 1, 2], [3, 4, 5], [6]]


async def test_a_full_batch_leaves_however_many_are_under_way() -> None:
    wire = Wire(max_batch=2, max_under_way=1)
    wire.open.clear()
    wire.add(0)
    await wire.leaves(1)
    wire.add(1)
    wire.add(2)
    await wire.leaves(2)
    assert wire.batches[1] == ("t", [1, 2])
    wire.open.set()
    await wire.batcher.drain()


async def test_a_batch_is_bounded_by_bytes_and_a_large_item_goes_alone() -> None:
    wire = Wire(max_batch_bytes=100)
    sizes = (40, 40, 40, 500, 40)
    await asyncio.gather(*(wire.add(n, size=size) for n, size in enumerate(sizes)))
    assert [items for _, items in wire.batches] == [[0, 1], [2], [3], [4]]


@law("E1")
async def test_a_refused_item_stands_alone() -> None:
    wire = Wire()
    wire.refuse = {13}
    answers = await asyncio.gather(*(wire.add(n) for n in range(64)), return_exceptions=True)
    assert isinstance(answers.pop(13), BadInput)
    assert answers == [f"t{n}" for n in range(64) if n != 13]
    # Halves, not one by one: a bad message does not cost its neighbours a request each.
    assert len(wire.batches) <= 13


@pytest.mark.parametrize("error", [Unreachable("gone"), Forbidden("no")])
async def test_what_concerns_all_is_not_tried_one_by_one(error: Exception) -> None:
    wire = Wire()
    wire.failure = error
    answers = await asyncio.gather(*(wire.add(n) for n in range(3)), return_exceptions=True)
    assert answers == [error] * 3
    assert len(wire.batches) == 1


async def test_a_full_queue_takes_what_fits() -> None:
    room = 3

    async def send(kind: str, items: list[int]) -> list[int]:
        nonlocal room
        if len(items) > room:
            raise QueueFull("full", queue="q", limit=3, retry_after_ms=1)
        room -= len(items)
        return items

    batcher: CallBatcher[str, int, int] = CallBatcher(send, ClientOptions())
    answers = await asyncio.gather(
        *(batcher.add("t", n, 1) for n in range(5)), return_exceptions=True
    )
    assert sum(isinstance(answer, int) for answer in answers) == 3
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 2


async def test_a_caller_that_is_cancelled_before_its_batch_leaves_has_sent_nothing() -> None:
    wire = Wire()
    kept, dropped = wire.add(1), wire.add(2)
    dropped.cancel()
    assert await kept == "t1"
    assert wire.batches == [("t", [1])]


async def test_a_caller_that_is_cancelled_under_way_leaves_the_others_alone() -> None:
    wire = Wire()
    wire.open.clear()
    kept, dropped = wire.add(1), wire.add(2)
    await wire.leaves(1)
    dropped.cancel()
    wire.open.set()
    assert await kept == "t1"


async def test_draining_sends_what_waits_and_takes_nothing_more() -> None:
    wire = Wire(max_under_way=1)
    wire.open.clear()
    first = wire.add(1)
    await wire.leaves(1)
    second = wire.add(2)
    draining = asyncio.create_task(wire.batcher.drain())
    await wire.leaves(2)
    with pytest.raises(StoreClosed):
        wire.add(3)
    assert not draining.done()
    wire.open.set()
    await draining
    assert (first.result(), second.result()) == ("t1", "t2")


async def test_a_bug_reaches_every_caller() -> None:
    wire = Wire()
    wire.failure = ZeroDivisionError()
    answers = await asyncio.gather(*(wire.add(n) for n in range(3)), return_exceptions=True)
    assert all(isinstance(answer, ZeroDivisionError) for answer in answers)


async def test_idle_lanes_are_forgotten() -> None:
    """A program may publish to any number of topics over time."""
    wire = Wire()
    for n in range(50):
        await wire.add(n, f"topic{n}")
    await turns()
    assert len(wire.batcher._batches) == 0


async def test_a_lone_caller_sends_its_item_itself_and_others_join_in_order() -> None:
    wire = Wire()
    assert await wire.batcher.call("t", 1, 1) == "t1"
    assert not wire.batcher._sending
    answers = await asyncio.gather(*(wire.batcher.call("t", n, 1) for n in range(5)))
    assert answers == ["t0", "t1", "t2", "t3", "t4"]
    assert wire.batches == [("t", [1]), ("t", [0, 1, 2, 3, 4])]
    assert not wire.batcher._batches


async def test_calls_wait_for_a_lone_caller_and_leave_when_it_returns() -> None:
    wire = Wire(max_under_way=1)
    wire.open.clear()
    calls = [asyncio.ensure_future(wire.batcher.call("t", 0, 1))]
    await wire.leaves(1)
    calls += [asyncio.ensure_future(wire.batcher.call("t", n, 1)) for n in (1, 2)]
    await turns()
    assert wire.batches == [("t", [0])]
    wire.open.set()
    assert await asyncio.gather(*calls) == ["t0", "t1", "t2"]
    assert wire.batches == [("t", [0]), ("t", [1, 2])]


@pytest.mark.parametrize("max_batch", [1, 2, 3])
async def test_a_first_caller_is_alone_if_the_others_fill_a_batch(max_batch: int) -> None:
    wire = Wire(max_batch=max_batch)
    answers = await asyncio.gather(*(wire.batcher.call("t", n, 1) for n in range(4)))
    assert answers == ["t0", "t1", "t2", "t3"]
    assert all(len(items) <= max_batch for _, items in wire.batches)
    assert not wire.batcher._batches


async def test_a_first_caller_that_is_cancelled_has_sent_nothing_and_the_others_leave() -> None:
    wire = Wire()
    calls = [asyncio.ensure_future(wire.batcher.call("t", n, 1)) for n in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == ["t1", "t2"]
    lone = asyncio.ensure_future(wire.batcher.call("t", 3, 1))
    await asyncio.sleep(0)
    lone.cancel()
    await asyncio.gather(lone, return_exceptions=True)
    assert wire.batches == [("t", [1, 2])]
    assert not wire.batcher._batches


async def test_a_lone_caller_that_is_cancelled_lets_the_others_go_on() -> None:
    wire = Wire(max_under_way=1)
    wire.open.clear()
    lone = asyncio.ensure_future(wire.batcher.call("t", 0, 1))
    await wire.leaves(1)
    other = asyncio.ensure_future(wire.batcher.call("t", 1, 1))
    await turns()
    lone.cancel()
    await wire.leaves(2)
    wire.open.set()
    assert await other == "t1"
    assert lone.cancelled()


async def test_draining_waits_for_a_lone_caller_twice() -> None:
    wire = Wire()
    wire.open.clear()
    lone = asyncio.ensure_future(wire.batcher.call("t", 0, 1))
    await asyncio.sleep(0)
    drains = [asyncio.ensure_future(wire.batcher.drain()) for _ in range(2)]
    await turns()
    assert not any(drain.done() for drain in drains)
    with pytest.raises(StoreClosed):
        await wire.batcher.call("t", 1, 1)
    wire.open.set()
    await asyncio.gather(*drains)
    assert await lone == "t0"


async def test_a_refused_lone_item_raises_its_error() -> None:
    wire = Wire()
    wire.refuse = {0}
    with pytest.raises(BadInput):
        await wire.batcher.call("t", 0, 1)
    assert await wire.batcher.call("t", 1, 1) == "t1"
