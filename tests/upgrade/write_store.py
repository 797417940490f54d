"""Writes the stores of one release: ``python -m tests.upgrade.write_store FOLDER``.

Run it with the release whose stores are to be kept, and never change the folder of a release
afterwards. FOLDER gets ``rocksdb.tar.xz``, the tables of both databases as ``postgresql.json.xz``
and ``mysql.json.xz``, and what readers saw in each of them as ``*.contents.json.xz``.
"""

from __future__ import annotations

import asyncio
import lzma
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.model.delivery import Ack, Nack, Reject, Release, ReplaySource, Settlement
from penstock.model.message import NewMessage
from penstock.model.queue import Backoff, Ordering, QueuePolicy, Start, TopicPolicy
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from tests.databases import server, store_url
from tests.upgrade.contents import TENANT, Kept, describe
from tests.upgrade.tables import read_tables

LEASE_MS = 60_000
DATABASES = ("postgresql", "mysql")


async def fill(engine: Engine, clock: FakeClock) -> dict[str, str]:
    """Leave deliveries in every state, and every kind of record; returns receipts by queue."""
    policies = {
        "orders": QueuePolicy(filter="topic = 'orders'", max_attempts=2, description="all orders"),
        "large": QueuePolicy(
            filter="topic = 'orders' AND amount >= 5",
            lease_ms=45_000,
            max_depth=100,
            throughput_limit=50,
            backoff=Backoff(base_ms=1, max_ms=10),
            failed_retention_s=3600,
        ),
        "ordered": QueuePolicy(filter="topic = 'steps'", ordering=Ordering.PARTITION),
        "paused": QueuePolicy(filter="topic = 'orders' AND amount = 1", paused=True),
    }
    for name, policy in policies.items():
        await engine.put_queue(TENANT, name, policy, Start())
    await engine.put_topic(TENANT, "orders", TopicPolicy(dedup_window_ms=7_200_000))
    await engine.put_document("notes", "one", b"text")
    now = clock.now()
    orders = [
        NewMessage(
            b"payload %d" % number,
            {"amount": number, "color": "red", "half": 0.5, "paid": number % 2 == 0},
            priority=9 if number == 7 else 4,
            id=f"id-{number}" if number < 3 else None,
            key="k" if number == 9 else None,
            content_type="text/plain",
        )
        for number in range(10)
    ]
    await engine.publish(TENANT, "orders", orders, batch_id="first")
    await engine.publish(TENANT, "orders", [NewMessage(b"replaced", {"amount": 8}, key="k")])
    times = [
        NewMessage(b"later", {"amount": 2}, deliver_at=now + 3_600_000),
        NewMessage(b"short", {"amount": 2}, expires_at=now + 30_000),
        NewMessage(b"long", {"amount": 2}, expires_at=now + 7_200_000),
    ]
    await engine.publish(TENANT, "orders", times)
    steps = [NewMessage(b"s%d" % nth, partition_key="ab"[nth % 2]) for nth in range(6)]
    await engine.publish(TENANT, "steps", steps)
    await engine.publish(TENANT, "unrouted", [NewMessage(b"u")])
    clock.advance(10)
    held = await settle(engine, clock)
    await engine.put_queue(TENANT, "behind", QueuePolicy(filter="TRUE"), Start(Start.EARLIEST))
    await engine.route(TENANT, "behind", 4)
    return held


async def settle(engine: Engine, clock: FakeClock) -> dict[str, str]:
    """Settle in every way, and leave claims in flight; returns their receipts by queue."""
    held = [one.receipt for one in await engine.claim(TENANT, "orders", "w1", 6, LEASE_MS)]
    settlements: Sequence[Settlement] = (
        Ack(held[0], b"result"),
        Ack(held[1]),
        Nack(held[2], "again", 600_000),
        Reject(held[3], "broken"),
        Release(held[4]),
    )
    await engine.settle(TENANT, "orders", settlements)
    (dead,) = await engine.claim(TENANT, "orders.dlq", "w2", 1, LEASE_MS)
    await engine.settle(TENANT, "orders.dlq", [Nack(dead.receipt, "still broken", 5)])
    clock.advance(50)
    for one in await engine.claim(TENANT, "large", "w1", 3, 20):
        await engine.settle(TENANT, "large", [Reject(one.receipt, "too large")])
    (large,) = await engine.claim(TENANT, "large", "w3", 1, LEASE_MS)
    await engine.replay(TENANT, "large", ReplaySource.FAILED, None, 1, replay_id="r1")
    await engine.join(TENANT, "ordered", "w1")
    step, other = await engine.claim(TENANT, "ordered", "w1", 2, LEASE_MS)
    await engine.settle(TENANT, "ordered", [Ack(step.receipt)])
    clock.advance(29_000)
    await engine.sweep()
    return {"orders": held[5], "large": large.receipt, "ordered": other.receipt}


async def write(url: str, folder: Path, name: str) -> None:
    """Write one store, and what it contains."""
    clock = FakeClock()
    engine = await open_engine(url, EngineOptions(clock=clock))
    held = await fill(engine, clock)
    contents = Kept(clock.now(), held, await describe(engine))
    await engine.close()
    encoded = msgspec.json.encode(contents)
    (folder / f"{name}.contents.json.xz").write_bytes(lzma.compress(encoded))


async def main(folder: Path) -> None:
    """Write the stores of all engines."""
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        await write(f"rocksdb://{store}", folder, "rocksdb")
        with tarfile.open(folder / "rocksdb.tar.xz", "w:xz") as archive:
            archive.add(store, "store")
    for dialect in DATABASES:
        url = await asyncio.to_thread(store_url, dialect, "kept")
        await write(url, folder, dialect)
        tables = await asyncio.to_thread(read_tables, server(dialect), "kept")
        encoded = msgspec.json.encode(tables)
        (folder / f"{dialect}.json.xz").write_bytes(lzma.compress(encoded))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    asyncio.run(main(target))
