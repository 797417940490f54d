"""Bounds: how long one callback may block the event loop, and one slice of a sweep, under load.

A loaded store is swept while publishers and consumers use it. Every kind of work of a sweep is due
at the same time: delays, leases, expiry, retention of deliveries, ids and log segments. A figure
is the longest time of a round, the median over all rounds, as a ratio to its bound. It is CPU time:
on a busy machine, wall-clock time mostly measures other processes. Wall-clock time is printed next
to it; on an idle machine they are the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from unittest.mock import patch

from bench.measuring import Figure, middle, payloads, scratch
from penstock.model.clock import SystemClock
from penstock.model.delivery import Ack, Reject
from penstock.model.limits import Limits
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine

T = TypeVar("T")

HOLD_MS = 20.0
SLICE_MS = 5.0
TENANT = "bench"
HOUR_MS = 3600 * 1000
#: A segment of the log is an hour; this many of them have waiting messages.
SEGMENTS = 100
WAITING = 40_000
#: Deliveries of each kind that are due at the same time.
DUE = 5_000
BATCH = 100
PUBLISHERS = 4
CONSUMERS = 4
SWEEP_LIMIT = 10_000


# -- measuring -------------------------------------------------------------------------------


class Adds(Protocol):
    """Records times."""

    def add(self, seconds: float, wall_seconds: float) -> None: ...


class Stopwatch:
    """Times a piece of work on this thread."""

    def __init__(self) -> None:
        self._begin = time.thread_time()
        self._wall = time.perf_counter()

    def stop(self, times: Adds) -> None:
        times.add(time.thread_time() - self._begin, time.perf_counter() - self._wall)


class Longest:
    """The longest of several times in milliseconds, CPU and wall-clock."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.wall_ms = 0.0

    def add(self, seconds: float, wall_seconds: float) -> None:
        self.ms = max(self.ms, seconds * 1000)
        self.wall_ms = max(self.wall_ms, wall_seconds * 1000)


@contextmanager
def loop_holds() -> Iterator[Longest]:
    """The longest time that one callback blocked the event loop; not for uvloop."""
    longest = Longest()
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        watch = Stopwatch()
        run(handle)
        watch.stop(longest)

    with patch.object(asyncio.Handle, "_run", timed):
        yield longest


class Sliced(Generic[T]):
    """Awaits a verb, and times the slices between its awaits."""

    def __init__(self, verb: Coroutine[Any, Any, T], times: Adds) -> None:
        self._verb = verb
        self._times = times

    def __await__(self) -> Generator[Any, Any, T]:
        resume = self._verb.send
        value: Any = None
        while True:
            watch = Stopwatch()
            try:
                waits_for = resume(value)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                watch.stop(self._times)
            try:
                resume, value = self._verb.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001  (passed on to the verb)
                resume, value = self._verb.throw, error


def of_bound(name: str, times: list[Longest], bound_ms: float) -> Figure:
    """The longest time as a ratio to its bound."""
    found = middle([one.ms for one in times])
    wall = middle([one.wall_ms for one in times])
    return Figure(
        f"{name}, of {bound_ms:.0f} ms",
        found / bound_ms,
        1.0,
        f"{found:.1f} ms, {wall:.1f} on the wall",
        f"{bound_ms:.0f} ms",
        at_most=True,
    )


# -- a loaded store --------------------------------------------------------------------------


class ShiftedClock(SystemClock):
    """The system time plus a manual shift."""

    wall = False
    """The store follows the shift immediately, unlike a jump of the machine's clock."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def now(self) -> int:
        return super().now() + self.shift_ms


async def open_store(path: Path, clock: ShiftedClock) -> KeyValueEngine:
    options = EngineOptions(clock=clock, limits=Limits(log_retention_ms=HOUR_MS))
    engine = await KeyValueEngine.open(RocksDBAdapter(path), options)
    for name in ("waiting", "busy", "live"):
        policy = QueuePolicy(
            filter=f"topic = '{name}'", done_retention_s=3600, failed_retention_s=3600
        )
        await engine.put_queue(TENANT, name, policy, Start())
    return engine


async def lade(engine: KeyValueEngine, clock: ShiftedClock) -> None:
    """Create old segments with waiting messages, and every kind of work, due in an hour."""
    body = payloads(1)[0]
    for _ in range(SEGMENTS):
        batch = [NewMessage(body)] * (WAITING // SEGMENTS)
        await engine.publish(TENANT, "waiting", batch, "os")
        clock.shift_ms += HOUR_MS
    soon = clock.now() + HOUR_MS // 2
    for begin in range(0, DUE, 1_000):
        numbers = range(begin, begin + 1_000)
        for batch in (
            [NewMessage(body, deliver_at=soon) for _ in numbers],
            [NewMessage(body, expires_at=soon) for _ in numbers],
            [NewMessage(body, id=f"{soon}-{number}") for number in numbers],
            [NewMessage(body, priority=9) for _ in numbers] * 3,
        ):
            await engine.publish(TENANT, "busy", batch, "os")
        held = await engine.claim(TENANT, "busy", "bench", 3_000, 2 * HOUR_MS)
        await engine.settle(TENANT, "busy", [Ack(item.receipt) for item in held[:1_000]])
        await engine.settle(TENANT, "busy", [Reject(item.receipt) for item in held[1_000:2_000]])


async def work(engine: KeyValueEngine, stop: asyncio.Event) -> None:
    """Publish and consume until ``stop``."""
    bodies = [NewMessage(body) for body in payloads(BATCH)]

    async def publish() -> None:
        while not stop.is_set():
            await engine.publish(TENANT, "live", bodies)

    async def consume(name: str) -> None:
        while not stop.is_set():
            held = await engine.claim(TENANT, "live", name, BATCH, None)
            await engine.settle(TENANT, "live", [Ack(item.receipt) for item in held])

    await asyncio.gather(
        *(publish() for _ in range(PUBLISHERS)),
        *(consume(f"consumer-{number}") for number in range(CONSUMERS)),
    )


# -- the figures -----------------------------------------------------------------------------


async def sweeping(rounds: int) -> list[Figure]:
    """The longest loop block and the longest slice of a sweep of a loaded store, under load."""
    holds: list[Longest] = []
    slices: list[Longest] = []
    clock = ShiftedClock()
    with scratch() as path:
        engine = await open_store(path / "store", clock)
        for _ in range(rounds):
            await lade(engine, clock)
            clock.shift_ms += 3 * HOUR_MS
            stop = asyncio.Event()
            longest = Longest()
            with loop_holds() as hold:
                load = asyncio.ensure_future(work(engine, stop))
                more, moved = True, 0
                while more:
                    reply = await Sliced(engine.sweep(SWEEP_LIMIT), longest)
                    more, moved = reply.more, moved + reply.due + reply.lapsed + reply.removed
                stop.set()
                await load
            if moved < DUE:
                raise AssertionError(f"the sweep moved {moved}: nothing was measured")
            holds.append(hold)
            slices.append(longest)
        await engine.close()
    name = f"{SEGMENTS} old segments and {WAITING:,} waiting, under load"
    return [
        of_bound(f"longest loop hold, sweeping {name}", holds, HOLD_MS),
        of_bound(f"longest slice of a sweep of {name}", slices, SLICE_MS),
    ]
