"""An event loop with virtual time over real connections; a seed decides what is sent next.

Several servers share one real database. Everything they send waits at a ``Gate``. When nothing on
the loop can run, the gate lets one operation through, chosen by the seed, and nothing else happens
until the database has replied or is found to be waiting for a lock. Then the next is chosen. If
nothing waits at the gate either, virtual time jumps to the next timer.

The database may reply at any time. That has no effect: replies are read only when everything that
was sent is answered or known to wait for a lock, and then one at a time, oldest connection first.
Timers of the database drivers never fire: real time is invisible.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import time
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any, Final, TypeVarTuple, Unpack

from penstock.testing.simulation.loop import EPOCH_MS, Deadlock, Endless
from penstock.testing.simulation.sql_observer import Observer

__all__ = ["Gate", "SqlClock", "SqlLoop", "Ticket"]

Ts = TypeVarTuple("Ts")

#: Seconds to wait for a reply before checking whether the database is blocked.
_GLANCE_S: Final = 0.001
#: Seconds without any progress after which a run is aborted: longer than the database's own lock
#: timeouts.
_STUCK_S: Final = 40.0
#: Operations after which a run is considered endless; most have a few hundred.
_MAX_TURNS: Final = 50_000
#: The drivers' own timers use real time.
_DRIVERS: Final = ("asyncpg", "asyncmy")


class Ticket:
    """An operation that waits at the gate or is in progress."""

    __slots__ = ("held_until", "label", "order", "passed", "server")

    def __init__(self, server: int, label: str, order: int, passed: asyncio.Future[None]) -> None:
        #: The order of its session: some sessions open a connection first and arrive later.
        self.order = order
        self.server = server
        self.label = label
        self.passed = passed
        self.held_until = 0


class Gate:
    """Lets operations through one at a time, in an order that the seed decides."""

    def __init__(self) -> None:
        self._random = Random(0)
        self._waiting: list[Ticket] = []
        self._trace = blake2b(digest_size=16)
        self._sessions = 0
        self.in_flight = 0
        self.turns = 0
        #: While True, everything passes immediately and virtual time stops: before and after a run.
        self.open = True
        #: Called with the chosen ticket; may delay it and return True.
        self.on_pass: Callable[[Ticket], bool] = lambda _: False

    def begin(self, seed: int) -> None:
        """Begin a run."""
        self._random = Random(f"gate {seed}")
        self._trace = blake2b(digest_size=16)
        self.turns = 0
        self.open = False

    @property
    def trace(self) -> str:
        """A digest of what passed, in order."""
        return self._trace.hexdigest()

    @property
    def busy(self) -> bool:
        """Whether anything waits here."""
        return bool(self._waiting)

    def begin_session(self) -> int:
        """The number of a session, in the order in which they began."""
        self._sessions += 1
        return self._sessions

    async def enter(self, server: int, label: str | None, order: int) -> None:
        """Wait until the operation may begin. The caller must call ``leave`` when it has ended.

        Without a label it may begin immediately.
        """
        if label is None:
            self.in_flight += 1
            return
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = Ticket(server, label, order, passed)
        self._waiting.append(ticket)
        try:
            await passed
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            else:
                self.leave()
            raise

    def let_all_pass(self) -> None:
        """Let everything pass from now on, including what is waiting."""
        self.open = True
        for ticket in self._waiting:
            self.in_flight += 1
            ticket.passed.set_result(None)
        self._waiting.clear()

    def leave(self) -> None:
        """Record the end of an operation."""
        self.in_flight -= 1

    def note(self, what: str) -> None:
        """Add something to the trace."""
        self._trace.update(what.encode() + b"\n")

    def let_one_pass(self) -> None:
        """Choose one of the waiting operations."""
        waiting = sorted(self._waiting, key=lambda ticket: ticket.order)
        free = [ticket for ticket in waiting if ticket.held_until <= self.turns]
        ticket = self._random.choice(free or waiting)
        self.turns += 1
        if self.turns > _MAX_TURNS:
            raise Endless(f"{self.turns} operations")
        if self.on_pass(ticket):
            return
        self._waiting.remove(ticket)
        self.note(f"{ticket.server} {ticket.label}")
        self.in_flight += 1
        ticket.passed.set_result(None)


class _Selector(selectors.DefaultSelector):
    """Waits for the database, for the gate, or not at all."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self._ages: dict[int, int] = {}
        self._registered = 0
        self.observer: Observer | None = None
        self.advance: Callable[[float], None] = lambda _: None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._registered += 1
        self._ages[key.fd] = self._registered
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._gate.open:
            return super().select(None if timeout is None else min(timeout, _GLANCE_S))
        if timeout is not None and timeout <= 0:
            # Callbacks are ready. They run first, even if replies have arrived meanwhile.
            return []
        if self._gate.in_flight:
            arrived = self._settled()
            if arrived:
                return arrived
        if self._gate.busy:
            self._gate.let_one_pass()
        elif self._gate.in_flight:
            return self._patiently()
        elif timeout is None:
            raise Deadlock("all tasks wait, and nothing is left that could wake one")
        else:
            self.advance(timeout)
        return []

    def _settled(self) -> list[tuple[selectors.SelectorKey, int]]:
        """One reply, once all that was sent is answered or waits for a lock; none if all wait."""
        assert self.observer is not None
        deadline = time.monotonic() + _STUCK_S
        while True:
            arrived = super().select(_GLANCE_S)
            if len(arrived) < self._gate.in_flight:
                waiting = self.observer.waiting()
                arrived = super().select(0)
                if len(arrived) + waiting < self._gate.in_flight:
                    if time.monotonic() > deadline:
                        raise Deadlock("the database does not answer")
                    continue
            return self._oldest(arrived)

    def _patiently(self) -> list[tuple[selectors.SelectorKey, int]]:
        """All wait for locks that no session will release: the database must resolve that."""
        arrived = super().select(_STUCK_S)
        if not arrived:
            raise Deadlock("the database does not resolve a deadlock")
        return self._oldest(arrived)

    def _oldest(
        self, arrived: list[tuple[selectors.SelectorKey, int]]
    ) -> list[tuple[selectors.SelectorKey, int]]:
        return sorted(arrived, key=lambda item: self._ages[item[0].fd])[:1]


class SqlLoop(asyncio.SelectorEventLoop):
    """A loop with real sockets and virtual time."""

    def __init__(self, gate: Gate) -> None:
        self._virtual_s = 0.0
        #: When real time was enabled.
        self._real_since_s: float | None = None
        selector = _Selector(gate)
        super().__init__(selector)
        selector.advance = self.advance
        self._watching = selector
        #: Errors of callbacks that no task awaited.
        self.errors: list[str] = []
        self.set_exception_handler(self._note_error)

    def watch(self, observer: Observer) -> None:
        """Use this observer to find out whether the database is blocked."""
        self._watching.observer = observer

    def abandon(self) -> None:
        """Close the loop although some of its tasks will never finish."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()

    def time(self) -> float:
        """Seconds of virtual time."""
        if self._real_since_s is None:
            return self._virtual_s
        return self._virtual_s + time.monotonic() - self._real_since_s

    def use_real_time(self) -> None:
        """Make timeouts use real seconds from now on. The gate must be open."""
        self._real_since_s = time.monotonic()

    def advance(self, seconds: float) -> None:
        """Advance virtual time."""
        self._virtual_s += seconds

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a time, or never if the caller is a database driver."""
        timer = super().call_at(when, callback, *args, context=context)
        owner = type(getattr(callback, "__self__", callback)).__module__ or ""
        if owner.startswith(_DRIVERS):
            timer.cancel()
        return timer

    def _note_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")


class SqlClock:
    """The virtual time since a run began, in epoch milliseconds."""

    wall: bool = False

    def __init__(self, loop: SqlLoop) -> None:
        self._loop = loop
        self._began = loop.time()

    def now(self) -> int:
        """The current time."""
        return EPOCH_MS + round((self._loop.time() - self._began) * 1000)

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call back when virtual time reaches ``at_ms``."""
        return self._loop.call_at(self._began + (at_ms - EPOCH_MS) / 1000, callback)
