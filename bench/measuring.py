"""Measuring: rates, medians, and stores on the disk to be measured.

A bare time says little on a machine one does not know; what a figure is compared with is
therefore measured in the same process, alternating with it, so that a slow disk slows both.
"""

from __future__ import annotations

import os
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
    """One ratio, what it is of, and what it should at least (or at most) be."""

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
    """Payloads that do not compress, so that the disk sees every byte."""
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
    """Messages a second of both, doing the same work by turns.

    Each does some, again and again, and says how many messages that was. A turn ends after
    the same number of messages on both sides: what RocksDB flushes and compacts behind
    their backs is then the same amount of data, and slows both down alike.
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


def per_second(value: float) -> str:
    """A rate for people."""
    return f"{value / 1000:.1f} k msg/s"
