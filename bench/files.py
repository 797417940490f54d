"""A store in files against a RocksDB store and the raw disk, in one run.

A burst is what the journal takes before commits wait for message files; the sustained rate includes
the writing of every message file and of every name in the directory of the queue.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import penstock
from bench.measuring import PAYLOAD_BYTES, Figure, middle, payloads, per_second, scratch
from penstock import Broker, NewMessage
from penstock.storage.keyvalue.adapters.files.adapter import FilesAdapter

BATCH = 100


async def files(rounds: int, burst: int) -> list[Figure]:
    """Publishing by the hundred: bursts on both stores, and until every file is written."""
    bursts: dict[str, list[float]] = {"files": [], "rocksdb": []}
    raw: list[float] = []
    sustained: list[float] = []
    for _ in range(rounds):
        with scratch() as path:
            raw.append(_append(path / "raw", burst))
            for scheme, rates in bursts.items():
                async with penstock.open(f"{scheme}:{path / scheme}") as q:
                    await q.create_queue("q", "topic = 't'")
                    begin = time.perf_counter()
                    await _publish(q, burst)
                    rates.append(burst / (time.perf_counter() - begin))
                    if scheme == "files":
                        _flush(q)
                        sustained.append(burst / (time.perf_counter() - begin))
    return [
        _figure("files, publish, 100 a batch, burst", 0.3, bursts["files"], bursts["rocksdb"]),
        _figure("files, the same with every file", 0.0, sustained, bursts["rocksdb"]),
        # Appends do no more than the disk has to: for orientation, without a target.
        _figure("files, burst against appends", 0.0, bursts["files"], raw),
    ]


def _figure(name: str, target: float, ours: list[float], against: list[float]) -> Figure:
    ratio = middle([mine / other for mine, other in zip(ours, against, strict=True)])
    return Figure(name, ratio, target, per_second(middle(ours)), per_second(middle(against)))


async def _publish(q: Broker, burst: int) -> None:
    supply = payloads(1000)
    for first in range(0, burst, BATCH):
        batch = supply[first % 1000 : first % 1000 + BATCH]
        await q.publish_batch("t", [NewMessage(payload) for payload in batch])


def _flush(q: Broker) -> None:
    adapter = q.engine._core.adapter  # type: ignore[attr-defined]
    assert isinstance(adapter, FilesAdapter)
    adapter.flush()


def _append(path: Path, burst: int) -> float:
    """Appends of a batch's payloads, each with one fdatasync, as messages per second."""
    block = os.urandom(BATCH * PAYLOAD_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        begin = time.perf_counter()
        for _ in range(burst // BATCH):
            os.write(descriptor, block)
            os.fdatasync(descriptor)
        return burst / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)
