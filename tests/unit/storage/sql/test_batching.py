"""Lanes: what shares a transaction, and what goes beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.errors import BadInput, CommitFailed, StoreBusy, StoreError, StoreUnavailable
from penstock.storage.sql.batching import Call, CallBatcher
from penstock.testing.laws import law

#: Only a test that would hang for ever waits this long.
HANG_S = 60.0


class Database:
    """Performs calls when it is told to, and remembers which came together."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self._gates: list[asyncio.Event] = []

    async def perform(self, calls: Sequence[Call[int, int]]) -> None:
        gate = asyncio.Event()
        self.batches.append([call.asked for call in calls])
        self._gates.append(gate)
        await gate.wait()
        for call in calls:
            call.answer(-call.asked)

    async def finish(self, batch: int) -> None:
        self._gates[batch].set()
        await _settle()


async def _settle() -> None:
    """Let everything that can happen without the database happen."""
    for _ in range(10):
        await asyncio.sleep(0)


class Callers:
    """Calls that were made."""

    def __init__(self, lane: CallBatcher[int, int]) -> None:
        self._lane = lane
        self._tasks: list[asyncio.Task[int]] = []

    async def make(self, *asked: int, weight: int = 1) -> None:
        self._tasks += [asyncio.ensure_future(self._lane.call(one, weight)) for one in asked]
        await _settle()

    async def answers(self) -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*self._tasks), HANG_S)


@pytest.fixture
def database() -> Database:
    return Database()


async def test_who_comes_meanwhile_shares_the_next_one(database: Database) -> None:
    callers = Callers(CallBatcher(database.perform, most=100))
    await callers.make(1)
    await callers.make(2)
    await callers.make(3)
    assert database.batches == [[1]]
    await database.finish(0)
    assert database.batches == [[1], [2, 3]]
    await database.finish(1)
    assert await callers.answers() == [-1, -2, -3]


async def test_a_transaction_carries_no_more_than_it_should(database: Database) -> None:
    callers = Callers(CallBatcher(database.perform, most=5))
    await callers.make(1, 2, 3, weight=2)
    await callers.make(4, weight=9)
    for batch in range(3):
        await database.finish(batch)
    # One call alone may be more.
    assert database.batches == [[1, 2], [3], [4]]
    assert await callers.answers() == [-1, -2, -3, -4]


async def test_little_waits_for_what_is_under_way(database: Database) -> None:
    callers = Callers(CallBatcher(database.perform, most=100, beside=10))
    await callers.make(1, weight=4)
    await callers.make(2, 3, weight=4)
    assert database.batches == [[1]]
    await database.finish(0)
    assert database.batches == [[1], [2, 3]]
    await database.finish(1)
    assert await callers.answers() == [-1, -2, -3]


async def test_much_goes_beside_it_but_there_are_never_three(database: Database) -> None:
    callers = Callers(CallBatcher(database.perform, most=100, beside=10))
    await callers.make(1, weight=4)
    await callers.make(2, 3, 4, weight=4)
    assert database.batches == [[1], [2, 3, 4]]
    await callers.make(5, weight=50)
    assert len(database.batches) == 2
    await database.finish(1)
    assert database.batches == [[1], [2, 3, 4], [5]]
    for batch in (0, 2):
        await database.finish(batch)
    assert await callers.answers() == [-1, -2, -3, -4, -5]


async def test_what_comes_at_once_is_shared_by_two(database: Database) -> None:
    callers = Callers(CallBatcher(database.perform, most=100, beside=10))
    await callers.make(1, 2, 3, 4, weight=5)
    assert database.batches == [[1, 2], [3, 4]]
    for batch in (0, 1):
        await database.finish(batch)
    assert await callers.answers() == [-1, -2, -3, -4]


async def test_whoever_has_left_is_left_out(database: Database) -> None:
    lane = CallBatcher(database.perform, most=100)
    first = asyncio.ensure_future(lane.call(1))
    await _settle()
    second, third = (asyncio.ensure_future(lane.call(asked)) for asked in (2, 3))
    await _settle()
    second.cancel()
    await _settle()
    await database.finish(0)
    assert database.batches == [[1], [3]]
    await database.finish(1)
    assert (await first, await third) == (-1, -3)
    await lane.drain()


async def test_calls_whose_callers_have_all_left_are_not_made(database: Database) -> None:
    lane = CallBatcher(database.perform, most=100)
    first = asyncio.ensure_future(lane.call(1))
    await _settle()
    second = asyncio.ensure_future(lane.call(2))
    await _settle()
    second.cancel()
    await database.finish(0)
    assert database.batches == [[1]]
    assert await first == -1
    await lane.drain()


async def test_a_failure_is_told_to_all_who_shared_it() -> None:
    async def perform(calls: Sequence[Call[int, int]]) -> None:
        raise StoreBusy(f"not these {len(calls)}")

    lane: CallBatcher[int, int] = CallBatcher(perform, most=100, beside=10)
    told = await asyncio.gather(lane.call(1), lane.call(2), return_exceptions=True)
    assert ["not these 2" in str(error) for error in told] == [True, True]


# -- one call that fails ---------------------------------------------------------------


class Refusing:
    """Fails every transaction that carries one of these calls."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        self._errors = errors
        self.batches: list[list[int]] = []

    async def perform(self, calls: Sequence[Call[int, int]]) -> None:
        self.batches.append([call.asked for call in calls])
        await asyncio.sleep(0)
        for call in calls:
            if call.asked in self._errors:
                raise self._errors[call.asked]
        for call in calls:
            call.answer(-call.asked)


async def _outcomes(database: Refusing, count: int) -> list[int | BaseException]:
    lane = CallBatcher(database.perform, 100)
    calls = [lane.call(asked) for asked in range(1, count)]
    return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), HANG_S)


@law("E1")
@pytest.mark.parametrize(
    "error", [BadInput("x"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "x"), StoreError("22021")]
)
async def test_what_one_call_brings_fails_no_other(error: Exception) -> None:
    database = Refusing({2: error})
    assert await _outcomes(database, 5) == [-1, error, -3, -4]
    assert database.batches == [[1, 2, 3, 4], [1], [2], [3], [4]]


@law("P2")
@pytest.mark.parametrize("error", [CommitFailed("x"), StoreBusy("x"), StoreUnavailable("x")])
async def test_what_may_be_committed_or_fails_for_all_is_not_made_again(
    error: Exception,
) -> None:
    database = Refusing({2: error})
    assert await _outcomes(database, 4) == [error, error, error]
    assert database.batches == [[1, 2, 3]]
