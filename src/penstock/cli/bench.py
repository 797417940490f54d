"""``penstock bench``: compares this store or server with the bare disk, in a few seconds.

A rate alone says little on an unknown machine. The same bytes appended to a file and synced are
therefore measured in the same run, in alternating turns, so that a slow disk slows down both. A
ratio of 0.5 means half the speed of the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

import click
from msgspec import Struct
from msgspec.structs import replace

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.options import target_options
from penstock.cli.printing import Column
from penstock.cli.progress import Meter, meter
from penstock.cli.session import Target, find_target, open_target, run, settings, store_path
from penstock.errors import BadInput
from penstock.model.delivery import Ack
from penstock.model.message import NewMessage

__all__ = ["bench"]

_PAYLOAD_BYTES: Final = 1024
_BATCH: Final = 100
_TASKS: Final = 64
#: Distinct payloads; more would not change the results.
_PAYLOADS: Final = 256
#: Messages per turn, before the turn of the other side.
_TURN: Final = 1_600

Work: TypeAlias = Callable[[], Awaitable[int]]


class Figure(Struct, frozen=True):
    """One kind of work, its rate, and the disk's rate in the same turns."""

    work: str
    messages_per_second: float
    disk_per_second: float
    ratio: float


_COLUMNS: Final[tuple[Column[Figure], ...]] = (
    Column("work", lambda item: item.work),
    Column("messages/s", lambda item: round(item.messages_per_second), right=True, style="bold"),
    Column("disk alone/s", lambda item: round(item.disk_per_second), right=True),
    Column("ratio", lambda item: f"{item.ratio:.2f}", right=True, style="bold"),
)


@click.command
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 600),
    default=2.0,
    show_default=True,
    help="Duration of each kind of work.",
)
@click.option("--folder", help="Where to measure the disk; by default next to the store.")
@target_options
def bench(seconds: float, folder: str | None) -> None:
    """Measure publishing, claiming and acking against the bare disk.

    With --url it uses a queue of its own on that server and deletes it afterwards; the messages
    stay in the log until retention removes them. Otherwise it creates a store of its own next
    to the one of --store, on the same disk, and removes it. Payloads are 1 KiB.

    \b
    Examples:
      penstock bench
      penstock bench --store rocksdb:///var/lib/penstock --seconds 5
      penstock bench --url http://127.0.0.1:8080 --json
    """
    figures = run(_measure(seconds, folder))
    if not printing.as_json(figures):
        printing.table(_COLUMNS, figures)


async def _measure(seconds: float, folder: str | None) -> list[Figure]:
    target = _chosen()
    base = _disk_of(target) if folder is None else _existing(folder)
    scratch = Path(tempfile.mkdtemp(prefix=".penstock-bench-", dir=base))
    if target.url is None:
        target = replace(target, store=f"rocksdb://{quote(str(scratch / 'store'))}")
    try:
        async with open_target(target) as q, _queue(q) as name:
            with meter("measuring", 3) as bar:
                return await _figures(q, name, _Disk(scratch / "disk"), seconds, bar)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _chosen() -> Target:
    """The server if one was configured, else the embedded store."""
    target = find_target()
    return target if settings().given("url") else replace(target, url=None)


async def _figures(q: QueueApi, name: str, disk: _Disk, seconds: float, bar: Meter) -> list[Figure]:
    supply = cycle(
        hashlib.shake_128(number.to_bytes(2, "big")).digest(_PAYLOAD_BYTES)
        for number in range(_PAYLOADS)
    )

    async def publish_batch() -> int:
        await q.publish_batch(name, [NewMessage(next(supply)) for _ in range(_BATCH)])
        return _BATCH

    async def publish_singly() -> int:
        await asyncio.gather(*(q.publish(name, next(supply)) for _ in range(_TASKS)))
        return _TASKS

    async def consume() -> int:
        deliveries = await q.claim(name, limit=_BATCH)
        if not deliveries:
            return 0
        await q.settle(name, [Ack(delivery.receipt) for delivery in deliveries])
        return len(deliveries)

    works: tuple[tuple[str, Work, int], ...] = (
        (f"publish, {_BATCH} a batch", publish_batch, _BATCH),
        (f"publish, {_TASKS} tasks, one a call", publish_singly, _TASKS),
        (f"claim and ack, {_BATCH} a batch", consume, _BATCH),
    )
    out = []
    for label, work, group in works:
        bar(description=label)
        ours, raw = await _by_turns(work, disk, group, seconds)
        out.append(Figure(label, ours, raw, ours / raw if raw else 0.0))
        bar(advance=1)
    return out


async def _by_turns(work: Work, disk: _Disk, group: int, seconds: float) -> tuple[float, float]:
    """Messages per second of both, in turns; ends early when there is nothing left to claim."""
    done, raw_done, spent, raw_spent = 0, 0, 0.0, 0.0
    while spent < seconds:
        begin = time.perf_counter()
        turn = 0
        while turn < _TURN:
            count = await work()
            if not count:
                break
            turn += count
        spent += time.perf_counter() - begin
        done += turn
        begin = time.perf_counter()
        for _ in range(max(1, turn // group)):
            raw_done += disk.append(group)
        raw_spent += time.perf_counter() - begin
        if turn < _TURN:
            break
    return done / spent, raw_done / raw_spent


class _Disk:
    """Synced appends to a file: the least that any durable store has to do."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._payload = hashlib.shake_128(b"disk").digest(_PAYLOAD_BYTES)
        self._sync = getattr(os, "fdatasync", os.fsync)

    def append(self, count: int) -> int:
        """Write ``count`` payloads in one synced write."""
        os.write(self._file, self._payload * count)
        self._sync(self._file)
        return count


@asynccontextmanager
async def _queue(q: QueueApi) -> AsyncIterator[str]:
    """A queue for this measurement, deleted afterwards."""
    name = f"penstock-bench-{os.getpid()}"
    await q.create_queue(name, f"topic = '{name}'", done_retention_s=1)
    try:
        yield name
    finally:
        await q.delete_queue(name)


def _existing(folder: str) -> Path:
    path = Path(folder).absolute()
    if not path.is_dir():
        raise BadInput(f"There is no folder {folder}.", field="folder")
    return path


def _disk_of(target: Target) -> Path:
    """The nearest existing directory above the store; for a server, the working directory."""
    path = store_path(target)
    if path is None:
        return Path.cwd()
    return next(parent for parent in path.absolute().parents if parent.is_dir())
