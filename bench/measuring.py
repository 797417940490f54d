"""Measuring: rates, medians, and scratch folders on the disk to be measured.

A time alone says little on an unknown machine. The reference of a figure is therefore measured in
the same process, alternating with it, so that a slow disk slows down both.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TypeAlias

from msgspec import Struct

PAYLOAD_BYTES = 1024
_TURN_MESSAGES = 3_200


class Figure(Struct, frozen=True):
    """One ratio, what it compares, and its target as a minimum or maximum."""

    name: str
    ratio: float
    target: float
    ours: str
    reference: str
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


def payloads(count: int) -> list[bytes]:
    """Incompressible payloads, so that the disk gets every byte."""
    return [os.urandom(PAYLOAD_BYTES) for _ in range(count)]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk of the working directory, or of PENSTOCK_BENCH_DIR."""
    base = os.environ.get("PENSTOCK_BENCH_DIR", os.getcwd())
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


Work: TypeAlias = Callable[[], Awaitable[int]]


async def alternate(ours: Work, reference: Work, seconds: float) -> tuple[float, float]:
    """Messages per second of both sides, doing the same work in turns.

    Each side works repeatedly and returns how many messages it processed. A turn ends after the
    same number of messages on both sides, so that RocksDB flushes and compacts the same amount of
    data in the background, which slows down both equally.
    """
    done = [0, 0]
    spent = [0.0, 0.0]
    while min(spent) < seconds:
        for side, work in enumerate((reference, ours)):
            turn = 0
            begin = time.perf_counter()
            while turn < _TURN_MESSAGES:
                turn += await work()
            spent[side] += time.perf_counter() - begin
            done[side] += turn
    return done[1] / spent[1], done[0] / spent[0]


def middle(values: list[float]) -> float:
    """The median."""
    return median(values)


def seconds_figure(name: str, found: float, bound: float) -> Figure:
    """A time as a ratio to its bound."""
    ours, reference = (
        f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms" for value in (found, bound)
    )
    return Figure(f"{name}, of {reference}", found / bound, 1.0, ours, reference, at_most=True)


def memory_figure(name: str, found_bytes: int, bound_mb: int) -> Figure:
    """Memory as a ratio to its bound."""
    found = found_bytes / 2**20
    reference = f"{bound_mb} MB"
    name = f"{name}, of {reference}"
    return Figure(name, found / bound_mb, 1.0, f"{found:.0f} MB", reference, at_most=True)


def peak_memory_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def per_second(value: float) -> str:
    """A rate, formatted."""
    return f"{value / 1000:.1f} k msg/s"
