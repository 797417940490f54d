"""Claim: what one call does in one turn of the loop is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.model.message import NewMessage
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue import claim as module
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.claim import claim
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.listener import Listener
from penstock.testing.clock import FakeClock

TENANT = "acme"
EXPIRED = 200


class Told(Listener):
    """Counts how often a queue is said to be ready."""

    def __init__(self) -> None:
        self.count = 0

    def ready(self, tenant: str, queue: str) -> None:
        del tenant, queue
        self.count += 1


@pytest.fixture(params=[Ordering.NONE, Ordering.PARTITION])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[KeyValueEngine]:
    """An engine with a queue in which the last message alone has not expired."""
    clock = FakeClock(1_000)
    engine = await KeyValueEngine.open(MemoryAdapter(), EngineOptions(clock=clock))
    await engine.put_queue(TENANT, "q", QueuePolicy(ordering=request.param), Start())
    late = [NewMessage(b"late", expires_at=2_000, partition_key="p")] * EXPIRED
    await engine.publish(TENANT, "t", [*late, NewMessage(b"good", partition_key="p")])
    clock.advance(2_000)
    yield engine
    await engine.close()


def queue_of(engine: KeyValueEngine) -> Queue:
    return engine._core.tenant(TENANT).queue("q")


async def test_the_last_turn_of_a_claim_expires_some_and_no_more(engine: KeyValueEngine) -> None:
    queue = queue_of(engine)
    told = engine.listener = Told()
    engine._begin()
    found = claim(queue, "c", 1, None, 3_000, last_turn=True)
    assert found == []
    # Some by their index, and some that stood in the way.
    assert queue.expired_count == 2 * module._MOVES_A_TURN
    assert told.count == 1  # Whoever waits looks again.


async def test_other_claims_go_on_from_there(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.keyvalue.claim_verbs.CLAIM_TURNS", 1)
    calls = 0
    while not (found := await engine.claim(TENANT, "q", "c", 1, None)):
        calls += 1
        assert calls < EXPIRED
    assert [delivery.payload for delivery in found] == [b"good"]
    assert queue_of(engine).expired_count == EXPIRED
