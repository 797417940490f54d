"""An app at work: concurrency, threads, slow handlers, lost claims, and how it ends."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from penstock import Ack, Nack, State
from penstock.errors import UnknownQueue, Unreachable
from penstock.model.states import Transition
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from penstock.worker import App, Context
from penstock.worker.running import Running
from tests.unit.consume.conftest import ClockPace, Spy, clock, pass_time, publish, q, turns

__all__ = ["clock", "q"]

LEASE_MS = 30_000


class Run:
    """A run under way, on the test's clock."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.task = asyncio.create_task(running.run())

    async def stop(self, *, immediately: bool = False) -> None:
        self.running.stop(immediately=immediately)
        await asyncio.wait_for(asyncio.shield(self.task), 60)


@pytest.fixture
def app(q: Spy) -> App:
    return App(q)


@pytest.fixture
def start(app: App, q: Spy, clock: FakeClock) -> Callable[[float], Run]:
    def begin(grace_s: float = 30.0) -> Run:
        return Run(
            Running(
                q,
                app.registrations,
                app.layers,
                consumer=None,
                grace_s=grace_s,
                pace=ClockPace(clock),
            )
        )

    return begin


async def until(condition: Callable[[], object]) -> None:
    """Let threads and tasks come as far as that."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (a thread may set it)
            await asyncio.sleep(0.001)


# -- at work ---------------------------------------------------------------------------


async def test_everything_is_handled_once_and_settled(app: App, q: Spy, start) -> None:
    seen: Counter[int] = Counter()

    @app.worker("q", concurrency=4)
    async def handler(number: int) -> int:
        seen[number] += 1
        await asyncio.sleep(0)
        return number

    ids = await publish(q, 100)
    run = start()
    await until(lambda: len(seen) == 100)
    await run.stop()
    assert seen == Counter(range(100))
    assert (await q.stats("q")).done == 100
    result = await q.result("q", ids[42])
    assert result is not None
    assert result.result == b"42"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_exits_has_failed_and_ends_no_worker(
    app: App, q: Spy, start, is_async: bool
) -> None:
    """A message that makes every worker exit would never become a dead letter."""

    def blocking(number: int) -> None:
        if number == 0:
            sys.exit("no such option")

    async def awaiting(number: int) -> None:
        blocking(number)

    app.worker("q")(awaiting if is_async else blocking)
    await q.update_queue("q", max_attempts=1)
    bad, good = await publish(q, 2)
    run = start()
    assert (await asyncio.wait_for(q.result("q", good, wait_ms=30_000), 60)) is not None
    await until(lambda: q.settled[Nack])
    await run.stop()
    result = await q.result("q", bad)
    assert result is not None
    assert result.error is not None
    assert result.error.startswith("RuntimeError: The handler called sys.exit('no such option').")


async def test_not_more_at_a_time_than_concurrency_and_not_more_in_flight_than_told(
    app: App, q: Spy, start
) -> None:
    busy, most, done = 0, 0, 0

    @app.worker("q", concurrency=3, max_in_flight=5)
    async def handler() -> None:
        nonlocal busy, most, done
        busy += 1
        most = max(most, busy)
        await turns(20)
        busy -= 1
        done += 1

    await publish(q, 40)
    run = start()
    await until(lambda: done == 40)
    await run.stop()
    assert most == 3
    assert q.most_in_flight <= 5


async def test_one_handler_for_several_queues(app: App, q: Spy, start) -> None:
    seen: Counter[str] = Counter()
    for name in ("left", "right"):
        await q.create_queue(name, f"topic = '{name}'")

    @app.worker(["left", "right"], order="fair", concurrency=2)
    async def handler(context: Context) -> None:
        seen[context.queue] += 1

    (registration,) = app.registrations
    assert registration.queues == ("left", "right")
    await publish(q, 5, "left")
    await publish(q, 5, "right")
    run = start()
    await until(lambda: seen.total() == 10)
    await run.stop()
    assert seen == {"left": 5, "right": 5}
    assert [(await q.stats(name)).done for name in ("left", "right")] == [5, 5]


async def test_several_queues_at_once(app: App, q: Spy, start) -> None:
    seen: dict[str, list[bytes]] = defaultdict(list)

    @app.worker("left", filter="topic = 'left'")
    async def left(payload: bytes) -> None:
        seen["left"].append(payload)

    @app.worker("right", filter="topic = 'right'")
    def right(payload: bytes) -> None:
        seen["right"].append(payload)

    await app.prepare(q)
    for name in ("left", "right"):
        await q.publish(name, name.encode())
    run = start()
    await until(lambda: len(seen) == 2)
    await run.stop()
    assert seen == {"left": [b"left"], "right": [b"right"]}


async def test_a_handler_that_fails_does_not_stop_the_others(app: App, q: Spy, start) -> None:
    done = []

    @app.worker("q", concurrency=1)
    async def handler(number: int) -> None:
        if number % 2:
            raise ValueError(number)
        done.append(number)

    await publish(q, 10)
    run = start()
    await until(lambda: len(done) == 5)
    await run.stop()
    stats = await q.stats("q")
    assert (stats.done, stats.delayed + stats.available) == (5, 5)


async def test_an_ack_that_cannot_be_sent_does_not_stop_the_others(
    app: App, q: Spy, start, caplog: pytest.LogCaptureFixture
) -> None:
    done = []

    @app.worker("q", concurrency=1)
    async def handler(number: int) -> None:
        if number == 0:
            q.faults["settle"] = [Unreachable("cable")]
        done.append(number)

    await publish(q, 3)
    run = start()
    await until(lambda: len(done) == 3)
    await run.stop()
    assert "was not settled" in caplog.text
    assert (await q.stats("q")).done == 2


@law("C1")
async def test_a_slow_handler_keeps_its_claim(app: App, q: Spy, clock: FakeClock, start) -> None:
    go_on = asyncio.Event()
    attempts = []

    @app.worker("q", concurrency=2)
    async def slow(context: Context) -> None:
        attempts.append(context.attempts)
        await go_on.wait()

    await publish(q, 1)
    run = start()
    await until(lambda: attempts)
    await pass_time(clock, 10 * LEASE_MS)
    go_on.set()
    await run.stop()
    assert attempts == [1]
    assert (await q.stats("q")).done == 1


@law("S1")
async def test_a_lost_claim_cuts_its_handler_off_and_the_worker_goes_on(
    app: App, q: Spy, clock: FakeClock, start
) -> None:
    log: list[str] = []

    @app.worker("q", concurrency=1)
    async def handler(context: Context) -> None:
        log.append(f"attempt {context.attempts}")
        if context.attempts == 1:
            try:
                await asyncio.Event().wait()
            finally:
                log.append(f"lost: {context.lost}")

    await publish(q, 1)
    run = start()
    await until(lambda: log)
    await q.release(q.claimed[0])
    await pass_time(clock, LEASE_MS)
    await until(lambda: len(log) == 3)
    await run.stop()
    assert log == ["attempt 1", "lost: True", "attempt 2"]
    assert (await q.stats("q")).done == 1


async def test_a_handler_that_takes_too_long_is_cancelled_and_nacked(
    app: App, q: Spy, start
) -> None:
    cancelled = asyncio.Event()

    @app.worker("q", timeout_ms=1, concurrency=1, retry_ms=3_600_000)
    async def handler(number: int) -> int:
        if number:
            return number
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return number

    await publish(q, 2)
    run = start()
    await asyncio.wait_for(cancelled.wait(), 60)
    await until(lambda: q.settled[Nack] and q.settled[Ack])
    await run.stop()
    stats = await q.stats("q")
    assert (stats.done, stats.delayed, stats.in_flight) == (1, 1, 0)
    (event,) = [e for e in await q.history(0) if e.transition is Transition.NACK]
    assert event.error is not None
    assert "longer than 1 ms" in event.error


async def test_a_handlers_own_timeout_is_its_own(app: App, q: Spy, start) -> None:
    @app.worker("q", timeout_ms=3_600_000, retry_ms=3_600_000)
    async def handler(number: int) -> None:
        raise TimeoutError("the other side")

    await publish(q, 1)
    run = start()
    await until(lambda: q.settled[Nack])
    await run.stop()
    (event,) = [e for e in await q.history(0) if e.transition is Transition.NACK]
    assert event.error is not None
    assert "the other side" in event.error


async def test_a_thread_that_takes_too_long_is_replaced_and_its_delivery_lapses(
    app: App, q: Spy, start
) -> None:
    """One thread at a time is allowed, and the second delivery is handled all the same."""
    go_on = threading.Event()
    handled: list[int] = []

    @app.worker("q", timeout_ms=50, concurrency=1)
    def handler(number: int) -> None:
        if number == 0:
            go_on.wait(60)
        handled.append(number)

    await publish(q, 2)
    run = start()
    try:
        await until(lambda: handled == [1])
        await run.stop()
        stats = await q.stats("q")
        assert (stats.done, stats.in_flight) == (1, 1)
    finally:
        go_on.set()


@law("C4")
async def test_two_apps_share_an_ordered_queue(app: App, q: Spy, clock: FakeClock, start) -> None:
    await q.create_queue("ordered", ordering="partition")
    seen: dict[str, list[int]] = defaultdict(list)

    @app.worker("ordered", concurrency=4)
    async def handler(number: int, context: Context) -> None:
        await turns(3)
        seen[context.message.partition_key or ""].append(number)

    for number in range(15):
        for key in "abcd":
            await q.publish("t", b"%d" % number, partition_key=key)
    runs = [start(), start()]
    async with asyncio.timeout(60):
        while sum(map(len, seen.values())) < 60:
            await pass_time(clock, 5_000)
    for run in runs:
        await run.stop()
    assert seen == {key: list(range(15)) for key in "abcd"}


# -- threads ---------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_thread_and_not_more_than_told(
    app: App, q: Spy, start
) -> None:
    barrier = threading.Barrier(3, timeout=60)
    names, done = set(), []
    main = threading.get_ident()

    @app.worker("q", concurrency=3)
    def blocking(number: int) -> int:
        assert threading.get_ident() != main
        # Three at a time, or none of them comes past this.
        barrier.wait()
        names.add(threading.current_thread().name)
        done.append(number)
        return number

    ids = await publish(q, 9)
    run = start()
    await until(lambda: len(done) == 9)
    await run.stop()
    assert len(names) == 3
    result = await q.result("q", ids[5])
    assert result is not None
    assert result.result == b"5"


async def test_a_thread_that_outlives_its_grace_is_left_to_its_lease(
    app: App, q: Spy, clock: FakeClock, start
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @app.worker("q", concurrency=1, max_in_flight=1)
    def stuck() -> None:
        begun.set()
        go_on.wait(timeout=60)
        ended.set()

    await publish(q, 1)
    run = start(grace_s=0.01)
    await until(begun.is_set)
    await run.stop()
    # Neither settled nor released: the thread may still be at it.
    assert (await q.stats("q")).in_flight == 1
    clock.advance(LEASE_MS)
    (again,) = await q.claim("q")
    assert again.attempts == 2
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 10)


@law("S1")
async def test_a_thread_learns_that_its_claim_is_lost_and_its_result_is_dropped(
    app: App, q: Spy, clock: FakeClock, start
) -> None:
    begun, lost = threading.Event(), threading.Event()

    @app.worker("q", concurrency=1, max_in_flight=1)
    def slow(context: Context) -> str:
        if context.attempts > 1:
            return "second"
        begun.set()
        while not context.lost:
            threading.Event().wait(0.001)
        lost.set()
        return "first"

    (number,) = await publish(q, 1)
    run = start()
    await until(begun.is_set)
    await q.release(q.claimed[0])
    await pass_time(clock, LEASE_MS)
    await until(lost.is_set)
    result = await asyncio.wait_for(q.result("q", number, wait_ms=10_000), 60)
    await run.stop()
    assert result is not None
    assert result.result == b"second"


# -- the end ---------------------------------------------------------------------------


async def test_stop_settles_what_runs_and_releases_what_was_not_begun(
    app: App, q: Spy, start
) -> None:
    go_on = asyncio.Event()
    begun: list[int] = []
    stopping: list[bool] = []

    @app.worker("q", concurrency=2, max_in_flight=6)
    async def handler(number: int, context: Context) -> None:
        begun.append(number)
        await go_on.wait()
        stopping.append(context.stopping)

    await publish(q, 10)
    run = start()
    await until(lambda: len(begun) == 2)
    await turns()
    assert (await q.stats("q")).in_flight == 6
    run.running.stop()
    await turns()
    stats = await q.stats("q")
    assert (stats.in_flight, stats.available) == (2, 8)
    assert not run.task.done()
    go_on.set()
    await asyncio.wait_for(run.task, 60)
    assert begun == [0, 1]
    assert stopping == [True, True]
    stats = await q.stats("q")
    assert (stats.done, stats.available, stats.in_flight) == (2, 8, 0)
    # C2: what was released counts no attempt.
    await q.update_queue("q", max_attempts=1)
    (again,) = await q.claim("q")
    assert again.message.id == 2
    assert (await q.nack(again)).state is State.FAILED


@pytest.mark.parametrize("how", ["grace", "at once", "cancelled"])
async def test_what_outlives_its_grace_is_cancelled_and_released(
    app: App, q: Spy, start, how: str
) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    @app.worker("q", concurrency=1, max_in_flight=1)
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    await publish(q, 1)
    run = start(grace_s=0.01 if how == "grace" else 3600)
    await begun.wait()
    if how == "cancelled":
        run.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.task
    else:
        await run.stop(immediately=how == "at once")
    assert ended == ["cleaned up"]
    assert (await q.stats("q")).available == 1


async def test_a_second_stop_ends_the_grace(app: App, q: Spy, start) -> None:
    begun = asyncio.Event()

    @app.worker("q", concurrency=1)
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    await publish(q, 1)
    run = start(grace_s=3600)
    await begun.wait()
    run.running.stop()
    await turns()
    assert not run.task.done()
    await run.stop(immediately=True)
    assert (await q.stats("q")).available == 1


async def test_an_error_that_cannot_pass_stops_everything_gracefully(
    app: App, q: Spy, start
) -> None:
    go_on, done = asyncio.Event(), []
    await q.create_queue("other", "topic = 'other'")

    @app.worker("q")
    async def handler() -> None: ...

    @app.worker("other")
    async def other() -> None:
        done.append("begun")
        await go_on.wait()
        done.append("done")

    run = start()
    await q.publish("other", b"")
    await until(lambda: done)
    await q.delete_queue("q")
    await turns()
    assert not run.task.done()
    go_on.set()
    with pytest.raises(UnknownQueue):
        await asyncio.wait_for(run.task, 60)
    assert done == ["begun", "done"]
    assert (await q.stats("other")).done == 1
