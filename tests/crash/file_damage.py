"""Random damage to the files of a store in a folder, and what became of it (X1).

``python -m tests.crash.file_damage 150 --seed 1`` damages 150 copies of a RocksDB store, one at a
time, and prints the outcomes; with ``--scheme files``, of a store in files. Acknowledged messages
that are missing without a word are ``silent``, and make the program fail. What a store may lose in
silence is the tail of commits after its last mark, because that is what a crash leaves: these are
counted apart, with the largest number of commits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest
from msgspec import Struct
from rocksdict import Options

from penstock.errors import PenstockError
from penstock.model.delivery import Ack
from penstock.model.message import NewMessage, Offset
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue import marks
from penstock.storage.keyvalue.adapters import rocksdb
from penstock.storage.keyvalue.adapters.files import adapter, checkpoint
from penstock.storage.keyvalue.adapters.mark_file import MarkFile
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.clock import FakeClock
from tests.crash.program import ALL, TENANT
from tests.crash.workload import store_url
from tests.live_copy import copy_store

QUEUE: Final = "orders"
#: Small, so that a store of one megabyte has several write-ahead logs and tables.
WRITE_BUFFER_BYTES: Final = 64 * 1024
COMMITS_PER_MARK: Final = 8
BATCHES, BATCH, PAYLOAD_BYTES = 45, 10, 1000
#: What a file is, by its name, and how often it is damaged: those that hold messages most.
KINDS: Final = {
    "*.log": 4,
    "*.sst": 3,
    "MANIFEST-*": 2,
    "CURRENT": 1,
    "OPTIONS-*": 1,
    "journal/*.journal": 6,
    "journal/*.snapshot": 3,
    "messages/*/*": 3,
    "PENSTOCK": 2,
}

REFUSED, REPORTED, WHOLE, TAIL, SILENT = "refused", "reported", "whole", "torn tail", "silent"


class Image(Struct):
    """A store at one moment, and what had been acknowledged by then."""

    path: Path
    #: Payload and commit of every acknowledged message, by id.
    published: dict[int, tuple[bytes, int]]
    #: The commit of every acknowledged ack, by message id.
    settled: dict[int, int]
    last_commit: int
    scheme: str

    @property
    def marked(self) -> int:
        """The commit that the mark of the image names."""
        stored = MarkFile(self.path).read()
        assert stored is not None
        return stored[0].number


class Outcome(Struct, frozen=True):
    """What one damage did."""

    fate: str
    damage: str
    lost_commits: int = 0


@contextlib.contextmanager
def small_files(*, keep_logs: bool = False) -> Iterator[None]:
    """Stores opened inside write small files and mark often.

    With ``keep_logs`` only payloads are written to tables before the store is closed, so every
    write-ahead log is still needed.
    """
    families = rocksdb._families

    def small_families() -> dict[str, Options]:
        options = families()
        for name, family in options.items():
            if name != "default" or not keep_logs:
                family.set_write_buffer_size(WRITE_BUFFER_BYTES)
        return options

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocksdb, "_families", small_families)
        patch.setattr(adapter, "CHECKPOINT_BYTES", 2 * WRITE_BUFFER_BYTES)
        # Seconds on a busy disk, and no power is lost here.
        for module in (adapter, checkpoint):
            patch.setattr(module, "sync_file_system", lambda _: None)
        patch.setattr(marks, "COMMITS_PER_MARK", COMMITS_PER_MARK)
        yield


class Builder:
    """Publishes and settles on one store, and takes images of it."""

    def __init__(self, folder: Path, seed: int, scheme: str = "rocksdb") -> None:
        self.folder = folder
        self.scheme = scheme
        self.store = folder / "store"
        self.random = Random(seed)
        self.clock = FakeClock()
        self.published: dict[int, tuple[bytes, int]] = {}
        self.settled: dict[int, int] = {}
        self.images: list[Image] = []

    async def build(self) -> list[Image]:
        """A store that was killed, closed, and killed again after it was reopened."""
        engine = await self.open()
        await self.work(engine, BATCHES)
        self.copy(engine, "killed")
        await engine.close()
        self.copy(engine, "closed")
        engine = await self.open()
        await self.work(engine, BATCHES // 3)
        self.copy(engine, "reopened")
        await engine.close()
        return self.images

    async def open(self) -> KeyValueEngine:
        engine = await open_engine(
            store_url(str(self.store), self.scheme), EngineOptions(clock=self.clock)
        )
        assert isinstance(engine, KeyValueEngine)
        return engine

    async def work(self, engine: KeyValueEngine, batches: int) -> None:
        for _ in range(batches):
            payloads = [self.random.randbytes(PAYLOAD_BYTES) for _ in range(BATCH)]
            batch = [NewMessage(payload) for payload in payloads]
            reply = await engine.publish(TENANT, QUEUE, batch)
            commit = _commit(engine)
            for item, payload in zip(reply.messages, payloads, strict=True):
                self.published[item.id] = (payload, commit)
            if self.random.random() < 0.3:
                deliveries = await engine.claim(TENANT, QUEUE, "c", 4, None)
                await engine.settle(TENANT, QUEUE, [Ack(item.receipt) for item in deliveries])
                self.settled |= {item.message.id: _commit(engine) for item in deliveries}
            self.clock.advance(self.random.randrange(50))

    def copy(self, engine: KeyValueEngine, name: str) -> None:
        path = self.folder / name
        copy_store(self.store, path)
        commits = _commit(engine)
        self.images.append(
            Image(path, dict(self.published), dict(self.settled), commits, self.scheme)
        )


def _commit(engine: KeyValueEngine) -> int:
    chain = engine._core.chain
    assert chain is not None
    return chain.number


# -- damage --------------------------------------------------------------------------------


def damage(folder: Path, other: Path, random: Random) -> str:
    """Damage one file in one way; returns a description. ``other`` is an older image."""
    kinds = [kind for kind in KINDS if list(folder.glob(kind))]
    (pattern,) = random.choices(kinds, [KINDS[kind] for kind in kinds])
    files = sorted(folder.glob(pattern))
    # The newest and the oldest are worth more than those between.
    file = random.choice([files[0], files[-1], random.choice(files)])
    kind = random.choice(list(_DAMAGES))
    size = file.stat().st_size
    _DAMAGES[kind](file, other, random)
    place = "only" if len(files) == 1 else "newest" if file == files[-1] else "older"
    return f"{kind} {file.name} ({place}, {size} bytes)"


def _cut(file: Path, _: Path, random: Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: -random.choice([1, 7, 100, 4000])])


def _truncate(file: Path, _: Path, random: Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: random.randrange(len(content) + 1)])


def _empty(file: Path, _: Path, __: Random) -> None:
    file.write_bytes(b"")


def _remove(file: Path, _: Path, __: Random) -> None:
    file.unlink()


def _zero(file: Path, _: Path, random: Random) -> None:
    content = bytearray(file.read_bytes())
    start = random.randrange(len(content) + 1) // 512 * 512
    length = min(random.choice([512, 4096]), len(content) - start)
    content[start : start + length] = bytes(length)
    file.write_bytes(content)


def _flip(file: Path, _: Path, random: Random) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def _swap(file: Path, other: Path, random: Random) -> None:
    """Exchange it with another of its kind, or put an older image's in its place."""
    pattern = next(kind for kind in KINDS if file.match(kind))
    others = [path for path in sorted(file.parent.glob(pattern)) if path != file]
    if others:
        second = random.choice(others)
        first_content, second_content = file.read_bytes(), second.read_bytes()
        file.write_bytes(second_content)
        second.write_bytes(first_content)
    else:
        older = sorted(other.glob(pattern))
        file.write_bytes(older[-1].read_bytes() if older else b"")


_DAMAGES: Final[dict[str, Callable[[Path, Path, Random], None]]] = {
    "cut": _cut,
    "truncated": _truncate,
    "emptied": _empty,
    "removed": _remove,
    "zeroed": _zero,
    "flipped": _flip,
    "swapped": _swap,
}


# -- judgement -----------------------------------------------------------------------------


async def judge(image: Image, path: Path, what: str) -> Outcome:
    """Open the damaged copy and compare all of it with what had been acknowledged."""
    try:
        engine = await open_engine(
            store_url(str(path), image.scheme), EngineOptions(clock=FakeClock())
        )
    except PenstockError:
        return Outcome(REFUSED, what)
    assert isinstance(engine, KeyValueEngine)
    try:
        chain = engine._core.chain
        assert chain is not None
        # Opening a copy commits a new epoch; that is not one of the image's.
        kept = chain.loaded.number if chain.loaded else 0
        log = await engine.read_log(TENANT, Offset(0), ALL, payloads=True)
        there: dict[int, bytes | None] = {
            int(entry.message.id): entry.payload for entry in log.entries
        }
        live: set[int] = set()
        if any(info.name == QUEUE for info in await engine.list_queues(TENANT)):
            for state in (State.AVAILABLE, State.IN_FLIGHT):
                page = await engine.peek(TENANT, QUEUE, state, None, ALL, payloads=True)
                live |= {item.message.id for item in page.items}
    except PenstockError:
        return Outcome(REPORTED, what)
    finally:
        with contextlib.suppress(PenstockError):
            await engine.close()
    return _compare(image, what, kept, there, live)


def _compare(
    image: Image, what: str, kept: int, there: dict[int, bytes | None], live: set[int]
) -> Outcome:
    published = image.published.items()
    lost = {commit for id_, (payload, commit) in published if there.get(id_) != payload}
    lost |= {commit for id_, commit in image.settled.items() if id_ in live}
    waiting = {id_ for id_ in there if id_ not in image.settled}
    if kept >= image.last_commit and not lost and waiting == live:
        return Outcome(WHOLE, what)
    lost_commits = image.last_commit - kept
    if kept >= image.marked and all(commit > kept for commit in lost):
        return Outcome(TAIL, what, lost_commits)
    return Outcome(SILENT, what, lost_commits)


async def run(folder: Path, count: int, seed: int, scheme: str = "rocksdb") -> list[Outcome]:
    """Damage ``count`` copies, one after another."""
    with small_files():
        images = await Builder(folder, seed, scheme).build()
        outcomes = []
        for number in range(count):
            random = Random(1000 * seed + number)
            image = random.choice(images)
            path = folder / "damaged"
            shutil.rmtree(path, ignore_errors=True)
            # The directories of queues are derived, and rebuilt.
            shutil.copytree(image.path, path, ignore=shutil.ignore_patterns("queues"))
            what = f"{number}: {image.path.name}: {damage(path, images[0].path, random)}"
            outcomes.append(await judge(image, path, what))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.crash.file_damage")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scheme", default="rocksdb", choices=["files", "rocksdb"])
    parser.add_argument("--list", action="store_true", help="print every outcome")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = asyncio.run(run(Path(folder), asked.count, asked.seed, asked.scheme))
    for outcome in outcomes:
        if asked.list or outcome.fate == SILENT:
            sys.stdout.write(f"{outcome.fate:10} {outcome.damage} {outcome.lost_commits or ''}\n")
    counts = Counter(outcome.fate for outcome in outcomes)
    tails = [outcome.lost_commits for outcome in outcomes if outcome.fate == TAIL]
    sys.stdout.write(f"{dict(counts)}, largest torn tail: {max(tails, default=0)} commits\n")
    return 1 if counts[SILENT] else 0


if __name__ == "__main__":
    sys.exit(main())
