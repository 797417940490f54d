"""Replay marks: kept as long as a replay could move the message again, and no longer."""

from __future__ import annotations

import pytest

from penstock.model.delivery import Ack, ReplaySource
from penstock.model.limits import Limits
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import QueueKeys
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter

T, Q = "t", "q"
RETENTION_MS = 60_000
DONE_S = 10


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def marks(store: FaultyAdapter) -> int:
    prefix = QueueKeys(T, Q).replayed
    return sum(key.startswith(prefix) for key in store.contents())


async def test_a_mark_goes_with_its_message(clock: FakeClock) -> None:
    store = FaultyAdapter()
    limits = Limits(log_retention_ms=RETENTION_MS)
    engine = await KeyValueEngine.open(store, EngineOptions(clock=clock, limits=limits))
    await engine.put_queue(T, Q, QueuePolicy(done_retention_s=DONE_S), Start())
    await engine.publish(T, "topic", [NewMessage(b"m")] * 3)
    await engine.purge(T, Q, State.AVAILABLE, None, 3)
    for count in (3, 0):
        reply = await engine.replay(T, Q, ReplaySource.LOG, None, 9, replay_id="r")
        assert reply.count == count
    assert marks(store) == 3

    clock.advance(RETENTION_MS * 2)
    await engine.sweep()
    assert marks(store) == 3, "the deliveries still wait, so the messages are kept"

    claimed = await engine.claim(T, Q, "c", 3, None)
    await engine.settle(T, Q, [Ack(delivery.receipt) for delivery in claimed])
    assert (await engine.replay(T, Q, ReplaySource.DONE, None, 9, replay_id="r")).count == 0

    clock.advance(RETENTION_MS * 2)
    for _ in range(3):  # What one sweep removes from queues, the next one removes from the log.
        await engine.sweep()
    assert (await engine.read_log(T, Offset(0), 9)).entries == ()
    assert marks(store) == 0
    await engine.close()
