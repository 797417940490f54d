"""Partitions: the cost of a claim from an ordered queue with few and with very many partitions."""

from __future__ import annotations

from pathlib import Path

from bench.bounds import SLICE_MS, TENANT, Longest, Sliced, of_bound
from bench.measuring import Figure, middle, scratch
from penstock.model.delivery import Ack, Delivery
from penstock.model.message import NewMessage
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.rocksdb import RocksDBAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine

FEW = 100
MANY = 100_000
#: Claims per round, on each side.
CLAIMS = 500
QUEUE = "ordered"


class Total:
    """Total time of a verb on the event loop, without the time it waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float, wall_seconds: float) -> None:
        del wall_seconds
        self.seconds += seconds


class Store:
    """An ordered queue with many partitions, and a consumer that owns all of them."""

    def __init__(self, engine: KeyValueEngine, partitions: int) -> None:
        self._engine = engine
        self._partitions = partitions
        self.joining = Longest()

    @classmethod
    async def open(cls, path: Path, partitions: int) -> Store:
        engine = await KeyValueEngine.open(RocksDBAdapter(path), EngineOptions())
        await engine.put_queue(TENANT, QUEUE, QueuePolicy(ordering=Ordering.PARTITION), Start())
        store = cls(engine, partitions)
        for begin in range(0, partitions, 1_000):
            await store._publish(range(begin, min(begin + 1_000, partitions)))
        await Sliced(engine.join(TENANT, QUEUE, "bench"), store.joining)
        return store

    async def claims(self) -> float:
        """Claim and ack one after another; returns the microseconds per claim."""
        await self._publish(range(min(CLAIMS, self._partitions)))
        total = Total()
        for _ in range(CLAIMS):
            verb = self._engine.claim(TENANT, QUEUE, "bench", 1, None)
            taken: list[Delivery] = await Sliced(verb, total)
            await self._engine.settle(TENANT, QUEUE, [Ack(item.receipt) for item in taken])
            await self._publish([int(str(item.message.partition_key)) for item in taken])
        return total.seconds / CLAIMS * 1e6

    async def close(self) -> None:
        await self._engine.close()

    async def _publish(self, partitions: range | list[int]) -> None:
        batch = [NewMessage(b"", partition_key=f"{number:06}") for number in partitions]
        await self._engine.publish(TENANT, QUEUE, batch, "os")


async def partitions(rounds: int) -> list[Figure]:
    """A claim with many partitions against one with few, and the longest slice of a join."""
    ratios: list[float] = []
    times: list[tuple[float, float]] = []
    with scratch() as path:
        few = await Store.open(path / "few", FEW)
        many = await Store.open(path / "many", MANY)
        for _ in range(rounds):
            times.append((await many.claims(), await few.claims()))
            ratios.append(times[-1][0] / times[-1][1])
        await few.close()
        await many.close()
    return [
        Figure(
            f"claim of one with {MANY:,} partitions, of {FEW}",
            middle(ratios),
            2.0,
            f"{middle([one for one, _ in times]):.0f} µs",
            f"{middle([other for _, other in times]):.0f} µs",
            at_most=True,
        ),
        of_bound(f"longest slice of joining {MANY:,} partitions", [many.joining], SLICE_MS),
    ]
