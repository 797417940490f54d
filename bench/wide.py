"""Width: a store with very many queues, each with a waiting message.

``python -m bench.wide FOLDER QUEUES`` measures in a process of its own, because its memory is one
of the figures.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import msgspec

import penstock
from bench.measuring import Figure, memory_figure, peak_memory_bytes, scratch, seconds_figure
from bench.routing import create_queues
from penstock import Broker

__all__ = ["wide"]

QUEUES = 10_000
FEW = 10
OPEN_S = 5.0
MEMORY_MB = 500
#: Claims that are timed, on each side.
CLAIMS = 2_000


class Wide(msgspec.Struct, frozen=True):
    """The report of the process."""

    open_s: float
    memory_bytes: int
    #: Claim and ack, messages per second, from many queues in turn and from few.
    many: float
    few: float


async def wide() -> list[Figure]:
    """Opening, memory, and claims from one queue after the other."""
    queues = QUEUES
    with scratch() as folder:
        command = [sys.executable, "-m", "bench.wide", str(folder), str(queues)]
        done = await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.PIPE)
    found = msgspec.json.decode(done.stdout, type=Wide)
    return [
        Figure(
            f"claim + ack, one at a time, from {queues:,} queues in turn, of {FEW}",
            found.many / found.few,
            0.8,
            f"{found.many:,.0f} a second",
            f"{found.few:,.0f}",
        ),
        seconds_figure(f"opening {queues:,} queues", found.open_s, OPEN_S),
        memory_figure(f"memory with {queues:,} queues", found.memory_bytes, MEMORY_MB),
    ]


async def _measure(folder: Path, queues: int) -> Wide:
    many, few = f"rocksdb:{folder}/many", f"rocksdb:{folder}/few"
    await _fill(many, queues, 1 + CLAIMS // queues)
    await _fill(few, FEW, 1 + CLAIMS // FEW)
    begin = time.perf_counter()
    async with penstock.open(many) as q:
        open_s = time.perf_counter() - begin
        many_rate = await _claims(q, queues)
    memory = peak_memory_bytes()
    async with penstock.open(few) as q:
        return Wide(open_s, memory, many_rate, await _claims(q, FEW))


async def _fill(url: str, queues: int, messages: int) -> None:
    async with penstock.open(url) as q:
        await create_queues(q, ["topic = 't'"] * queues)
        for _ in range(messages):
            await q.publish("t", b"x" * 100, durability="os")


async def _claims(q: Broker, queues: int) -> float:
    begin = time.perf_counter()
    for number in range(CLAIMS):
        (delivery,) = await q.claim(f"queue-{number % queues}", consumer="bench")
        await q.ack(delivery)
    return CLAIMS / (time.perf_counter() - begin)


if __name__ == "__main__":
    report = asyncio.run(_measure(Path(sys.argv[1]), int(sys.argv[2])))
    sys.stdout.buffer.write(msgspec.json.encode(report))
