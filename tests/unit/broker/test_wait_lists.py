"""No wake-up is ever lost (C5): random programs on an engine that takes its time.

Whatever the interleaving, once everything has come to rest nobody waits for a queue that
would hand something out. Hypothesis finds the program and shrinks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Backoff, Broker, BrokerOptions, Delivery, EngineOptions, NewMessage
from penstock.broker.wait_lists import QueueWaitList
from penstock.model.limits import MAX_TIME_MS, MAX_WAIT_MS
from penstock.storage.listener import Listener
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.broker.waits import calm

pytestmark = pytest.mark.timeout(120)

#: More turns than a look of the slow engine takes, with everything that it may set off.
CALM_TURNS: Final = 150
CONSUMERS: Final = ("a", "b", "c")

POLICIES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "limited": {"throughput_limit": 3},
    "ordered": {"ordering": "partition"},
}

Step = tuple[str, int]
STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["wait"] * 5,
                *["publish"] * 4,
                *["turns"] * 4,
                "ack",
                "advance",
                "cancel",
                "delayed",
                "hang up",
                "hang up",
                "nack",
                "passing claim",
                "pause",
                "release",
                "rest",
                "resume",
                "sweep",
            ]
        ),
        st.integers(0, 11),
    ),
    min_size=5,
    max_size=40,
)


class SlowEngine:
    """Lets others run for some turns before a verb and after it, at random."""

    def __init__(self, q: Broker, random: Random) -> None:
        self._random = random
        for verb in ("claim", "next_due", "get_queue"):
            setattr(q.engine, verb, self._slow(getattr(q.engine, verb)))

    def _slow(self, verb: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def slow(*args: Any) -> Any:
            await calm(self._random.choice((0, 0, 1, 2, 5)))
            reply = await verb(*args)
            await calm(self._random.choice((0, 0, 1, 2, 5)))
            return reply

        return slow


class Hangup(Listener):
    """Cancels the oldest wait in the very moment in which a line is notified, when asked to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, asyncio.Task[list[Delivery]]]] = []
        self.armed = 0

    def ready(self, tenant: str, queue: str) -> None:
        for _, task in self.waiting:
            if self.armed and not task.done() and not task.cancelling():
                self.armed -= 1
                task.cancel()


class Program:
    """Runs steps, without waiting for them to have had their effect."""

    def __init__(self, q: Broker, clock: FakeClock, hangup: Hangup, *, limited: bool) -> None:
        self._q = q
        self._clock = clock
        self._hangup = hangup
        self._limited = limited
        self._waiting: list[tuple[str, asyncio.Task[list[Delivery]]]] = []
        self._others: list[asyncio.Task[Any]] = []
        self._held: list[Delivery] = []

    async def run(self, steps: list[Step]) -> None:
        for verb, number in steps:
            await self._step(verb, number)
        await self._rest()
        for _, task in self._waiting:
            task.cancel()
        await calm(CALM_TURNS)

    async def _step(self, verb: str, number: int) -> None:
        match verb:
            case "wait":
                self._wait(number)
            case "publish":
                messages = [
                    NewMessage(b"", partition_key=f"p{n % 3}") for n in range(1 + number // 4)
                ]
                self._begin(self._q.publish_batch("t", messages))
            case "delayed":
                self._begin(self._q.publish("t", b"", delay_ms=100 * (number + 1)))
            case "turns":
                await calm(number)
            case "advance":
                self._clock.advance(100 * (number + 1))
            case "cancel" if self._waiting:
                self._waiting[number % len(self._waiting)][1].cancel()
            case "hang up":
                self._hangup.waiting = self._waiting
                self._hangup.armed = 1
            case "passing claim":
                self._take(asyncio.create_task(self._q.claim("q", consumer=CONSUMERS[number % 3])))
            case "pause" | "resume":
                await getattr(self._q, verb)("q")
            case "sweep":
                self._begin(self._q.sweep())
            case "ack" | "nack" | "release" if self._held:
                held = self._held.pop(number % len(self._held))
                self._begin(getattr(self._q, verb)(held))
            case "rest":
                await self._rest()

    def _wait(self, number: int) -> None:
        consumer = CONSUMERS[number % 3]
        claim = self._q.claim(
            "q",
            limit=1 + number % 3,
            consumer=consumer,
            lease_ms=1000 * (1 + number % 4),
            wait_ms=(300, 3000, MAX_WAIT_MS)[number % 3],
        )
        task = asyncio.create_task(claim)
        self._waiting.append((consumer, task))
        self._take(task)

    def _take(self, task: asyncio.Task[list[Delivery]]) -> None:
        def taken(done: asyncio.Task[list[Delivery]]) -> None:
            if not done.cancelled():
                self._held += done.result()

        task.add_done_callback(taken)

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        # A receipt may be stale by now; that is not what this is about.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._others.append(task)

    async def _rest(self) -> None:
        """Everything comes to rest; then whoever still waits has to have nothing to get."""
        await calm(CALM_TURNS)
        if self._limited:
            # What the throughput limit lets go is let go within a second.
            self._clock.advance(1000)
            await calm(CALM_TURNS)
        assert all(task.done() for task in self._others)
        for consumer in CONSUMERS:
            self._waiting = [(name, task) for name, task in self._waiting if not task.done()]
            if any(name == consumer for name, _ in self._waiting):
                missed = await self._q.claim("q", limit=1000, consumer=consumer)
                assert missed == [], f"C5: {consumer} waits for what it could have had"
                # On an ordered queue the claim may have released partitions, which others take.
                await calm(CALM_TURNS)


async def run(steps: list[Step], seed: int, **policy: Any) -> None:
    clock = FakeClock()
    engine = EngineOptions(clock=clock, jitter=lambda ceiling_ms: ceiling_ms)
    hangup = Hangup()
    options = BrokerOptions(engine=engine, listener=hangup)
    async with penstock.open("memory://", options=options, keepers=False) as q:
        await q.create_queue("q", backoff=Backoff(200, 200), max_attempts=1000, **policy)
        SlowEngine(q, Random(seed))
        program = Program(q, clock, hangup, limited="throughput_limit" in policy)
        await program.run(steps)
        assert not q._waiting._queues
        assert not q._waiting._tasks


@law("C5")
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, seed=st.integers(0, 2**16))
def test_no_wake_up_is_lost(policy: dict[str, Any], steps: list[Step], seed: int) -> None:
    asyncio.run(run(steps, seed, **policy))


def test_a_claim_that_releases_partitions_wakes_their_new_owner() -> None:
    """Found by chance: a consumer has all partitions, and its next claim leaves some to another."""
    steps: list[Step] = [("wait", 1), ("wait", 1), ("sweep", 0), ("wait", 1), ("wait", 2)]
    asyncio.run(run([*steps, ("publish", 8)], 81, ordering="partition"))


@law("C5")
async def test_a_line_that_turns_out_to_be_ordered_wakes_everybody(q: Broker) -> None:
    """Another process changed the queue; whoever looks first finds out for them all."""
    line = QueueWaitList(FakeClock(), q.engine, "default", "q")
    rests = [asyncio.create_task(line.rest(ticket, MAX_TIME_MS)) for ticket in range(3)]
    await calm()
    line.notify()
    await calm()
    assert [rest.done() for rest in rests] == [True, False, False]
    line.order(True)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*rests) == [True, True, True]


@law("C5")
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("seed", range(10))
def test_a_crowd_that_comes_and_goes(seed: int, policy: dict[str, Any]) -> None:
    """Some wait, something is published, some hang up just then: again and again."""
    random = Random(seed)
    steps: list[Step] = []
    for _ in range(30):
        steps += [("wait", random.randrange(12)) for _ in range(random.randrange(4))]
        steps += [("turns", 11)] * random.randrange(4)
        steps += [("hang up", 0)] * random.randrange(2)
        steps += [("publish", random.randrange(12)) for _ in range(random.randrange(3))]
        steps += [(random.choice(["ack", "nack", "release", "turns"]), random.randrange(12))]
        steps += [("rest", 0)] * random.randrange(2)
    asyncio.run(run(steps, seed, **policy))
