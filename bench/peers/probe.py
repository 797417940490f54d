"""The probe: what became of every message of a run, in memory that all its processes share.

For every number there is whether its publish was confirmed, how often it was received, whether its
ack returned, how long the publish call took, and how long it took from that call to the handler.
Each process counts in a slot of its own, so that no increment is lost.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Final

from msgspec import Struct

from bench.messages import check

__all__ = ["CAPACITY", "Phase", "Probe", "Verdict", "percentile"]

#: Messages of one run. The file is sparse: only what is used takes memory.
CAPACITY: Final = 4_000_000
#: Processes that count at the same time.
_SLOTS: Final = 64
_WORD: Final = 8
_MICROSECONDS_MAX: Final = 2**32 - 1
_MANY: Final = 255
#: Any number of receipts as one.
_AT_LEAST_ONCE: Final = bytes([0, *(1 for _ in range(255))])


class Phase(IntEnum):
    """What the clients should do; the benchmark sets it."""

    WAIT = 0
    WARM_UP = 1
    MEASURE = 2
    DRAIN = 3
    """Producers end; consumers continue."""
    END = 4


class _Word(IntEnum):
    PHASE = 0
    READY = 1
    SLOTS = 2
    DAMAGED = 3


class Verdict(Struct, frozen=True):
    """What became of all messages of a run."""

    confirmed: int
    received: int
    settled: int
    #: Confirmed and never received.
    lost: int
    #: Receipts beyond the first of a message.
    duplicates: int
    damaged: int


class Probe:
    """A view of the shared file. ``create`` makes it, other processes open it by its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR)
        memory = memoryview(mmap.mmap(self._file, _SIZE))
        self._words = memory[: len(_Word) * _WORD].cast("Q")
        self._published = memory[_PUBLISHED:_SETTLED].cast("Q")
        self._settled = memory[_SETTLED:_CONFIRMED_FLAGS].cast("Q")
        self.confirmed = memory[_CONFIRMED_FLAGS:_RECEIVED_COUNTS]
        self.received = memory[_RECEIVED_COUNTS:_SETTLED_FLAGS]
        self.settled = memory[_SETTLED_FLAGS:_CALL_TIMES]
        self.call_us = memory[_CALL_TIMES:_LATENCIES].cast("I")
        self.latency_us = memory[_LATENCIES:].cast("I")
        self._numbers = count()
        self._slot: tuple[int, int] | None = None

    @classmethod
    def create(cls, path: Path) -> Probe:
        """Make the file, with nothing in it."""
        with path.open("wb") as file:
            file.truncate(_SIZE)
        return cls(path)

    # -- the course of a run -----------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return Phase(self._words[_Word.PHASE])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._words[_Word.PHASE] = phase

    def add_ready(self) -> None:
        """Called by a client that could begin."""
        self._increment(_Word.READY)

    def ready_clients(self) -> int:
        return self._words[_Word.READY]

    def published_count(self) -> int:
        return sum(self._published)

    def settled_count(self) -> int:
        return sum(self._settled)

    # -- messages ----------------------------------------------------------------------

    def take(self, size: int) -> range:
        """The next numbers. Only one process of a run may take any."""
        first = next(self._numbers)
        for _ in range(size - 1):
            next(self._numbers)
        if first + size > CAPACITY:
            raise OverflowError(f"more than {CAPACITY:,} messages: measure fewer seconds")
        return range(first, first + size)

    def confirm(self, numbers: range, seconds: float) -> None:
        """Record that a publish call returned after ``seconds``."""
        self.confirmed[numbers.start : numbers.stop] = b"\1" * len(numbers)
        if self._is_measuring():
            for number in numbers:
                self.call_us[number] = _microseconds(seconds)
        self._published[self._own_slot()] += len(numbers)

    def receive(self, payload: bytes) -> int:
        """Check a message that has arrived; returns its number."""
        now = time.monotonic_ns()
        try:
            number, published = check(payload)
        except ValueError:
            self._increment(_Word.DAMAGED)
            raise
        if self.received[number] < _MANY:
            self.received[number] += 1
        if self._is_measuring() and not self.latency_us[number]:
            self.latency_us[number] = _microseconds((now - published) / 1e9)
        return number

    def settle(self, numbers: Sequence[int]) -> None:
        """Record that an ack returned."""
        for number in numbers:
            self.settled[number] = 1
        self._settled[self._own_slot()] += len(numbers)

    # -- the outcome -------------------------------------------------------------------

    def verdict(self) -> Verdict:
        confirmed, received = bytes(self.confirmed), bytes(self.received)
        seen = int.from_bytes(received.translate(_AT_LEAST_ONCE), "little")
        return Verdict(
            confirmed=confirmed.count(1),
            received=CAPACITY - received.count(0),
            settled=bytes(self.settled).count(1),
            lost=(int.from_bytes(confirmed, "little") & ~seen).bit_count(),
            duplicates=sum(received.count(times) * (times - 1) for times in range(2, _MANY + 1)),
            damaged=self._words[_Word.DAMAGED],
        )

    def received_since(self, settled: bytes, received: bytes) -> int:
        """How many of the ``settled`` messages came again after ``received`` was copied."""
        now = bytes(self.received)
        return sum(1 for number in _positions(settled, CAPACITY) if now[number] > received[number])

    # -- internals ---------------------------------------------------------------------

    def _is_measuring(self) -> bool:
        # Not by way of ``phase``: this is asked once per message.
        return self._words[0] == _MEASURE

    def _own_slot(self) -> int:
        # By process: a worker may fork after its first message.
        if self._slot is None or self._slot[0] != os.getpid():
            self._slot = (os.getpid(), self._increment(_Word.SLOTS) % _SLOTS)
        return self._slot[1]

    def _increment(self, word: _Word) -> int:
        """Add one, although other processes may too; returns the value before."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            self._words[word] += 1
            return self._words[word] - 1
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


_MEASURE: Final = int(Phase.MEASURE)
_PUBLISHED: Final = len(_Word) * _WORD
_SETTLED: Final = _PUBLISHED + _SLOTS * _WORD
_CONFIRMED_FLAGS: Final = _SETTLED + _SLOTS * _WORD
_RECEIVED_COUNTS: Final = _CONFIRMED_FLAGS + CAPACITY
_SETTLED_FLAGS: Final = _RECEIVED_COUNTS + CAPACITY
_CALL_TIMES: Final = _SETTLED_FLAGS + CAPACITY
_LATENCIES: Final = _CALL_TIMES + 4 * CAPACITY
_SIZE: Final = _LATENCIES + 4 * CAPACITY


def percentile(microseconds: Iterable[int], share: float) -> float | None:
    """In milliseconds, of the values that are not zero; None if there are none."""
    values = sorted(value for value in microseconds if value)
    if not values:
        return None
    return values[min(len(values) - 1, int(len(values) * share))] / 1000


def _microseconds(seconds: float) -> int:
    return max(1, min(_MICROSECONDS_MAX, round(seconds * 1e6)))


def _positions(flags: bytes, end: int) -> Iterable[int]:
    """Where the flags are set."""
    at = flags.find(1, 0, end)
    while at >= 0:
        yield at
        at = flags.find(1, at + 1, end)
