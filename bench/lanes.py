"""``python -m bench.lanes``: producer and consumer processes of the service benchmarks.

A message is 1 KiB: its number, the publish time, a checksum, and incompressible bytes. Every
consumer checks every message and counts each number once. Our lanes use the client as a program
would; those for Redis use redis-py with hiredis, pipelines of a hundred, and XACK with XDEL,
because acknowledged entries otherwise stay in memory.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

import penstock
from penstock import Ack, NewMessage

BATCH = 100
SIZE = 1024
AHEAD = 5_000
#: Concurrent calls per process, so that it has work while the disk is busy.
LANES = 16
QUEUE = "work"
GROUP = "workers"
_HEAD = struct.Struct(">QQI")
_FILLER = os.urandom(SIZE - _HEAD.size)
_CHECKED = zlib.crc32(_FILLER)


def body(number: int) -> bytes:
    return _HEAD.pack(number, time.monotonic_ns(), _CHECKED ^ (number & 0xFFFFFFFF)) + _FILLER


def check(payload: bytes) -> tuple[int, int]:
    """Verify a message; returns its number and publish time."""
    number, at, checksum = _HEAD.unpack_from(payload)
    if zlib.crc32(payload[_HEAD.size :]) ^ (number & 0xFFFFFFFF) != checksum:
        raise RuntimeError(f"message {number} is damaged")
    return number, at


class Progress:
    """The consumer's progress, in memory shared with the producer."""

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(8)
            self._map = mmap.mmap(file.fileno(), 8)

    def set(self, count: int) -> None:
        self._map[:] = count.to_bytes(8, "big")

    def get(self) -> int:
        return int.from_bytes(self._map[:], "big")


class Seen:
    """Checks that each number arrives once."""

    def __init__(self, count: int) -> None:
        self._flags = bytearray(count)
        self.count = 0

    def add(self, payload: bytes) -> int:
        number, at = check(payload)
        if self._flags[number]:
            raise RuntimeError(f"message {number} came twice")
        self._flags[number] = 1
        self.count += 1
        return at


@contextmanager
def reporting() -> Iterator[dict[str, Any]]:
    """Print a report for the benchmark, with the CPU seconds of the block."""
    report: dict[str, Any] = {}
    cpu = time.process_time()
    yield report
    report["cpu_s"] = time.process_time() - cpu
    sys.stdout.write(json.dumps(report))


# -- ours ------------------------------------------------------------------------------------


async def produce(url: str, count: int, progress: Progress) -> None:
    """Batches of a hundred, several in flight."""
    async with penstock.connect(url) as q:
        firsts = iter(range(0, count, BATCH))

        async def lane() -> None:
            for first in firsts:
                while first - progress.get() > AHEAD:  # noqa: ASYNC110  (another process)
                    await asyncio.sleep(0.001)
                batch = [NewMessage(body(number)) for number in range(first, first + BATCH)]
                await q.publish_batch(QUEUE, batch)

        with reporting() as report:
            report["began"] = time.monotonic()
            await asyncio.gather(*(lane() for _ in range(LANES)))


async def consume(url: str, count: int, progress: Progress) -> None:
    """Claims of a hundred, acked together; the next claim overlaps with the ack."""
    async with penstock.connect(url) as q:
        seen = Seen(count)
        settled = 0

        async def lane() -> None:
            nonlocal settled
            while seen.count < count:
                deliveries = await q.claim(QUEUE, limit=BATCH, consumer="bench", wait_ms=500)
                for delivery in deliveries:
                    seen.add(delivery.payload)
                if deliveries:
                    await q.settle(QUEUE, [Ack(delivery.receipt) for delivery in deliveries])
                    settled += len(deliveries)
                    progress.set(settled)
                    if settled == count:
                        report["ended"] = time.monotonic()

        with reporting() as report:
            await asyncio.gather(*(lane() for _ in range(LANES)))


async def many(url: str, seconds: float) -> None:
    """64 tasks, one publish per call; the client batches them."""
    async with penstock.connect(url) as q:
        await q.publish(QUEUE, body(0))
        with reporting() as report:
            report["rate"] = await _many(lambda number: q.publish(QUEUE, body(number)), seconds)


async def _many(publish: Callable[[int], Any], seconds: float) -> float:
    done = 0
    begin = time.monotonic()

    async def one() -> None:
        nonlocal done
        while time.monotonic() - begin < seconds:
            await publish(done)
            done += 1

    await asyncio.gather(*(one() for _ in range(64)))
    return done / (time.monotonic() - begin)


async def latency_consumer(url: str, count: int) -> None:
    """One waiting consumer, one task per message; reports the time from publish to handler."""
    taken: list[float] = []
    handling: set[asyncio.Task[None]] = set()

    async def handle(lease: penstock.Lease) -> None:
        async with lease:
            taken.append((time.monotonic_ns() - check(lease.payload)[1]) / 1e6)

    async with penstock.connect(url) as q:
        with reporting() as report:
            async for lease in q.consume(QUEUE, consumer="bench"):
                task = asyncio.ensure_future(handle(lease))
                handling.add(task)
                task.add_done_callback(handling.discard)
                if len(taken) + len(handling) >= count:
                    break
            if handling:
                await asyncio.wait(handling)
            taken.sort()
            report["p50_ms"] = taken[len(taken) // 2]
            report["p99_ms"] = taken[len(taken) * 99 // 100]


async def latency_producer(url: str, count: int, rate: int) -> None:
    """One publish per call, at a steady rate."""
    async with penstock.connect(url) as q:
        begin = time.monotonic()
        with reporting():
            sending: set[asyncio.Task[object]] = set()
            for number in range(count):
                pause = begin + number / rate - time.monotonic()
                if pause > 0:
                    await asyncio.sleep(pause)
                task = asyncio.ensure_future(_publish(q, number))
                sending.add(task)
                task.add_done_callback(sending.discard)
            if sending:
                await asyncio.wait(sending)


async def _publish(q: Any, number: int) -> None:
    await q.publish(QUEUE, body(number))


# -- Redis -----------------------------------------------------------------------------------


def produce_redis(port: int, count: int, progress: Progress) -> None:
    import redis  # noqa: PLC0415

    connection = redis.Redis(port=port)
    connection.ping()
    with reporting() as report:
        report["began"] = time.monotonic()
        for first in range(0, count, BATCH):
            while first - progress.get() > AHEAD:
                time.sleep(0.001)
            pipe = connection.pipeline(transaction=False)
            for number in range(first, first + BATCH):
                pipe.xadd(QUEUE, {b"b": body(number)})
            pipe.execute()
    connection.close()


def consume_redis(port: int, count: int, progress: Progress) -> None:
    import redis  # noqa: PLC0415

    connection = redis.Redis(port=port, protocol=2)
    seen = Seen(count)
    with reporting() as report:
        while seen.count < count:
            reply: Any = connection.xreadgroup(
                GROUP, "bench", {QUEUE: ">"}, count=BATCH, block=5_000
            )
            for _, entries in reply or ():
                for _, fields in entries:
                    seen.add(fields[b"b"])
                ids = [entry for entry, _ in entries]
                pipe = connection.pipeline(transaction=False)
                pipe.xack(QUEUE, GROUP, *ids)
                pipe.xdel(QUEUE, *ids)
                pipe.execute()
                progress.set(seen.count)
        report["ended"] = time.monotonic()
    connection.close()


async def many_redis(port: int, seconds: float) -> None:
    import redis.asyncio  # noqa: PLC0415

    lanes = [redis.asyncio.Redis(port=port, single_connection_client=True) for _ in range(64)]
    with reporting() as report:
        free = list(lanes)

        async def publish(number: int) -> None:
            lane = free.pop()
            await lane.xadd(QUEUE, {b"b": body(number)})
            free.append(lane)

        report["rate"] = await _many(publish, seconds)
    for lane in lanes:
        await lane.aclose()


def main() -> None:
    role, target, *rest = sys.argv[1:]
    match role:
        case "produce":
            uvloop.run(produce(target, int(rest[0]), Progress(Path(rest[1]))))
        case "consume":
            uvloop.run(consume(target, int(rest[0]), Progress(Path(rest[1]))))
        case "many":
            uvloop.run(many(target, float(rest[0])))
        case "latency-consumer":
            uvloop.run(latency_consumer(target, int(rest[0])))
        case "latency-producer":
            uvloop.run(latency_producer(target, int(rest[0]), int(rest[1])))
        case "produce-redis":
            produce_redis(int(target), int(rest[0]), Progress(Path(rest[1])))
        case "consume-redis":
            consume_redis(int(target), int(rest[0]), Progress(Path(rest[1])))
        case "many-redis":
            uvloop.run(many_redis(int(target), float(rest[0])))
        case _:
            raise SystemExit(f"there is no lane {role}")


if __name__ == "__main__":
    main()
