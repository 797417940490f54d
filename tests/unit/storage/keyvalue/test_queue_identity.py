"""A queue that is deleted while a verb is under way, and another one that takes its name."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from penstock.errors import UnknownQueue
from penstock.model.delivery import ReplaySource
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.encoding import unseal
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import FORMAT_KEY, QueueKeys
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from penstock.testing.laws import law
from penstock.testing.simulation.keyvalue import orphans

T, Q = "t", "q"
#: More than one slice, so that there is something left to do when the queue goes.
MESSAGES = 6


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def opened(store: FaultyAdapter, clock: FakeClock) -> KeyValueEngine:
    return await KeyValueEngine.open(store, EngineOptions(clock=clock), slice_size=1)


async def filled(store: FaultyAdapter, clock: FakeClock) -> KeyValueEngine:
    engine = await opened(store, clock)
    await engine.put_queue(T, Q, QueuePolicy(), Start())
    await engine.publish(T, "topic", [NewMessage(b"m")] * MESSAGES)
    return engine


async def replace_queue_during(
    engine: KeyValueEngine, verb: Coroutine[object, object, object]
) -> asyncio.Task[object]:
    """Delete the queue after the first slice of ``verb``, and create another of its name."""
    task = asyncio.ensure_future(verb)
    await asyncio.sleep(0)
    assert not task.done()
    await asyncio.gather(
        engine.delete_queue(T, Q), engine.put_queue(T, Q, QueuePolicy(bucket_size=0), Start())
    )
    return task


async def check_new_queue(engine: KeyValueEngine, store: FaultyAdapter, clock: FakeClock) -> None:
    """Nothing of the old queue is in the new one, in memory or after reopening."""
    for _ in range(2):
        for name in (Q, f"{Q}.dlq"):
            stats = await engine.stats(T, name)
            assert {state: getattr(stats, state) for state in State} == dict.fromkeys(State, 0)
        await engine.close()
        assert orphans(store.contents()) == []
        engine = await opened(store, clock)
    await engine.publish(T, "topic", [NewMessage(b"new")])
    assert [d.payload for d in await engine.claim(T, Q, "c", 10, None)] == [b"new"]
    await engine.close()


@law("Q1")
async def test_a_replay_ends_with_its_queue(clock: FakeClock) -> None:
    store = FaultyAdapter()
    engine = await filled(store, clock)
    await engine.purge(T, Q, State.AVAILABLE, None, MESSAGES)
    replay = engine.replay(T, Q, ReplaySource.LOG, None, MESSAGES, replay_id="r")
    task = await replace_queue_during(engine, replay)
    with pytest.raises(UnknownQueue):
        await task
    await check_new_queue(engine, store, clock)


@law("Q1")
async def test_a_purge_ends_with_its_queue(clock: FakeClock) -> None:
    store = FaultyAdapter()
    engine = await filled(store, clock)
    purge = engine.purge(T, Q, State.AVAILABLE, None, MESSAGES)
    task = await replace_queue_during(engine, purge)
    with pytest.raises(UnknownQueue):
        await task
    await check_new_queue(engine, store, clock)


@law("Q1")
async def test_a_sweep_leaves_out_what_was_deleted_meanwhile(clock: FakeClock) -> None:
    store = FaultyAdapter()
    engine = await opened(store, clock)
    for number in range(50):  # The sweep has its slices of these before it comes to the queue.
        await engine.put_queue(T, f"before-{number}", QueuePolicy(filter="FALSE"), Start())
    await engine.put_queue(T, Q, QueuePolicy(), Start())
    await engine.publish(T, "topic", [NewMessage(b"m")] * MESSAGES)
    assert len(await engine.claim(T, Q, "c", MESSAGES, 1_000)) == MESSAGES
    clock.advance(60_000)
    await (await replace_queue_during(engine, engine.sweep()))
    await check_new_queue(engine, store, clock)


async def test_the_records_of_a_later_queue_are_keyed_by_its_number(clock: FakeClock) -> None:
    store = FaultyAdapter()
    engine = await filled(store, clock)
    await engine.claim(T, Q, "c", 1, None)
    await engine.close()
    assert int.from_bytes(unseal(store.contents()[FORMAT_KEY], "format"), "little") == 1
    engine = await opened(store, clock)
    await engine.delete_queue(T, Q)
    await engine.put_queue(T, Q, QueuePolicy(), Start(Start.EARLIEST))
    await engine.route(T, Q, 100)
    await engine.close()
    contents = store.contents()
    active = QueueKeys(T, Q).active, QueueKeys(T, Q, 2).active
    assert active[1].hex() == "0102" + "742f712f32" + "00"  # t/q/2
    assert [any(key.startswith(prefix) for key in contents) for prefix in active] == [False, True]
    assert int.from_bytes(unseal(contents[FORMAT_KEY], "format"), "little") == 2
    engine = await opened(store, clock)
    assert (await engine.stats(T, Q)).available == MESSAGES
    await engine.close()


async def test_a_queue_is_not_filled_with_what_an_older_version_left_behind(
    clock: FakeClock,
) -> None:
    store = FaultyAdapter()
    engine = await filled(store, clock)
    await engine.close()
    # As replay and purge of format 1 could leave it: records without a specification.
    store.write({QueueKeys(T, Q).spec: None}, [], sync=True)
    engine = await opened(store, clock)
    await engine.put_queue(T, Q, QueuePolicy(), Start())
    await engine.close()
    engine = await opened(store, clock)
    assert (await engine.stats(T, Q)).available == 0
    assert (await engine.peek(T, Q, State.AVAILABLE, None, 10)).items == ()
    assert await engine.claim(T, Q, "c", 10, None) == []
    await engine.close()
