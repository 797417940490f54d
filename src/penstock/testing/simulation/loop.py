"""An event loop with virtual time, in which a seed decides what runs next.

Nothing in it depends on the machine. One random generator orders ready callbacks, results from
outside (a disk, a thread) and the passage of time, so the same seed repeats the same run, and
another seed is another interleaving. asyncio runs callbacks in the order in which they were
scheduled; this loop does not, because requests of independent clients arrive in any order.

Work that a thread would do is passed to ``arrive``: it runs on the loop, at a moment that the seed
decides, and time may pass before it does.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Generator
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

__all__ = ["EPOCH_MS", "Deadlock", "Endless", "SimulatedClock", "SimulatedLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: The time at which every simulation begins, in epoch milliseconds.
EPOCH_MS: Final = 1_700_000_000_000
#: Callbacks after which a run is considered endless. A run of 100 steps takes about 5,000.
MAX_TURNS: Final = 2_000_000
#: One turn in this many advances time by a few milliseconds, so that time moves between turns.
_TICK_ONE_IN: Final = 24
_MAX_TICK_MS: Final = 3
_CREATED: Final = inspect.CORO_CREATED
#: While only results from outside are pending, one turn in this many lets the next timer fire
#: first, as with a slow disk.
_LATE_ONE_IN: Final = 6


class Deadlock(AssertionError):
    """All tasks wait, and nothing is left that could wake one."""


class Endless(AssertionError):
    """The run does not end."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs callbacks one at a time, in an order that the seed decides."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._ready: list[asyncio.Handle] = []
        self._arriving: list[asyncio.Handle] = []
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._task_numbers = count()
        self._now_us = 0
        self._running = False
        self._closed = False
        self._trace = blake2b(digest_size=16)
        self._factory: Any = None
        #: One turn in this many handles an arrival although a callback is ready.
        self._arrival_one_in = self._random.choice((2, 4, 10))
        #: Callbacks that were run.
        self.turns = 0
        #: While True, time does not pass as long as anything else can run.
        self.frozen = False
        #: Errors of callbacks that no task awaited.
        self.errors: list[str] = []
        #: Every task of the run, in the order of creation.
        self.tasks: list[asyncio.Task[Any]] = []

    # -- time --------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds of virtual time since the run began."""
        return self._now_us / 1_000_000

    @property
    def now_ms(self) -> int:
        """Milliseconds of virtual time since the run began."""
        return self._now_us // 1_000

    # -- scheduling --------------------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.arrive(callback, *args, context=context)

    def arrive(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call back as if from outside: the seed decides how much happens before."""
        handle = asyncio.Handle(callback, args, self, context)
        self._arriving.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (round(when * 1_000_000), next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called when a timer is cancelled. The timer is dropped when its time comes."""

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run ``func`` on the loop when the seed decides that the thread is done."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001  (raised where it is awaited)
                future.set_exception(error)

        self.arrive(work)
        return future

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        # asyncio numbers tasks per process; names here repeat with the seed.
        label = name or f"task-{next(self._task_numbers)}"
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=label, context=context)
        self.tasks.append(task)
        return task

    # -- running -----------------------------------------------------------------------

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until the future is done. Raises ``Deadlock`` if it never can be."""
        task = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._running = True
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
        try:
            while not task.done():
                self._turn()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            self._running = False
            events._set_running_loop(before)
        return task.result()

    def _turn(self) -> None:
        """Run one callback."""
        if self.turns >= MAX_TURNS:
            raise Endless(f"after {self.turns} turns the run has not ended")
        self._let_time_pass()
        handle = self._pick()
        if handle is None or handle.cancelled():
            return
        self.turns += 1
        self._trace.update(_label(handle))
        handle._run()

    def _let_time_pass(self) -> None:
        if not self.frozen and self._random.randrange(_TICK_ONE_IN) == 0:
            self._now_us += 1_000 * self._random.randint(1, _MAX_TICK_MS)
        idle = not self._ready and not self._arriving
        late = (
            not self._ready
            and not self.frozen
            and bool(self._arriving)
            and self._random.randrange(_LATE_ONE_IN) == 0
        )
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        if (idle or late) and self._timers:
            self._now_us = max(self._now_us, self._timers[0][0])
        elif idle:
            raise Deadlock("all tasks wait, and nothing is left that could wake one")
        while self._timers and self._timers[0][0] <= self._now_us:
            self._ready.append(heappop(self._timers)[2])

    def _pick(self) -> asyncio.Handle | None:
        if self._arriving and (
            not self._ready or self._random.randrange(self._arrival_one_in) == 0
        ):
            return self._arriving.pop(self._random.randrange(len(self._arriving)))
        if not self._ready:
            return None
        return self._ready.pop(self._random.randrange(len(self._ready)))

    @property
    def trace(self) -> str:
        """A digest of what was run, in order: equal for equal interleavings."""
        return self._trace.hexdigest()

    # -- required by asyncio ------------------------------------------------------------

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def close(self) -> None:
        """Drop everything pending; this ends the tasks of a store that lost power."""
        self._ready.clear()
        self._arriving.clear()
        self._timers.clear()
        self._closed = True
        for task in self.tasks:
            coroutine = task.get_coro()
            # Python warns of a coroutine that never began.
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == _CREATED:
                coroutine.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed:
            return  # The rest of a lost store is dropped with the loop.
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")


class SimulatedClock:
    """The virtual time of a loop, in epoch milliseconds."""

    wall: bool = False

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        """The current time, which moves only when the loop lets it."""
        return EPOCH_MS + self._loop.now_ms

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call back when virtual time reaches ``at_ms``."""
        return self._loop.call_at((at_ms - EPOCH_MS) / 1000, callback)


def _label(handle: asyncio.Handle) -> bytes:
    """The name of a callback in the trace: its task, or the function."""
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name().encode() + b"\n"
    name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
    return str(name).encode() + b"\n"
