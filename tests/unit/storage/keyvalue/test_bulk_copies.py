"""Bulk dead-letter copies on a key-value store: the disk records what each commit writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from penstock.errors import UnknownQueue
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from tests.unit.storage.bulk_copies import COUNT, POLICY, BulkCopies, D, Q, Scene, T, rejects


@asynccontextmanager
async def opened(disk: FaultyAdapter, step_size: int = 100) -> AsyncIterator[Scene]:
    clock = FakeClock()

    def copied() -> list[list[int]]:
        return [
            [
                len(value or b"")
                for key, value in batch.writes.items()
                if key.startswith(PAYLOAD_PREFIX)
            ]
            for batch in disk.journal
        ]

    engine = await KeyValueEngine.open(disk, EngineOptions(clock=clock), step_size=step_size)
    await engine.put_queue(T, D, QueuePolicy(filter="topic = 'dead'"), Start())
    scene = Scene(engine, clock, copied)
    await scene.put_queue()
    yield scene
    await engine.close()


class TestBulkCopies(BulkCopies):
    """The tests of every engine, and those of steps and commits."""

    @pytest.fixture
    def disk(self) -> FaultyAdapter:
        return FaultyAdapter()

    @pytest.fixture
    async def scene(self, disk: FaultyAdapter) -> AsyncIterator[Scene]:
        async with opened(disk) as scene:
            yield scene

    async def test_a_settle_of_several_steps(self, disk: FaultyAdapter) -> None:
        async with opened(disk, step_size=7) as scene:
            settlements = rejects(await scene.claimed())
            await scene.check(lambda: scene.engine.settle(T, Q, settlements))

    async def test_a_queue_that_copies_nothing_settles_in_one_commit(
        self, scene: Scene, disk: FaultyAdapter
    ) -> None:
        await scene.put_queue(replace(POLICY, dead_letter_topic=None))
        claimed = await scene.claimed()
        begin = len(disk.journal)
        await scene.engine.settle(T, Q, rejects(claimed))
        assert len(disk.journal) == begin + 1

    async def test_a_queue_deleted_between_two_commits(self, scene: Scene) -> None:
        settlements = rejects(await scene.claimed())
        settle = asyncio.create_task(scene.engine.settle(T, Q, settlements))
        await asyncio.sleep(0)
        await scene.engine.delete_queue(T, Q)
        with pytest.raises(UnknownQueue):
            await settle
        assert 0 < (await scene.engine.stats(T, D)).available < COUNT
