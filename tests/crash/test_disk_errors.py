"""A disk that refuses (P2, S3): a failed fsync, a full disk, a sector that cannot be read.

After a refused commit nobody can say what is on the disk, so the engine pretends nothing:
those who waited get ``CommitFailed``, and so does everyone after them until the store is
opened again. What is then there is a whole number of commits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import CommitFailed, PenstockError, StoreUnavailable
from penstock.model.delivery import Ack, Delivery, Nack, ReplaySource
from penstock.model.identity import StoreIdentity
from penstock.model.message import MessageId, NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from penstock.testing.laws import law
from tests.crash.program import ALL, TENANT, Program, everything, open_on, states

QUEUE = "orders"
each_thread = pytest.mark.parametrize("inline", [True, False], ids=["inline", "thread"])
each_fault = pytest.mark.parametrize("fault", ["fail_sync", "fail_space"], ids=["eio", "enospc"])

VERBS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "put_queue": lambda e: e.put_queue(TENANT, "new", QueuePolicy(), Start()),
    "get_queue": lambda e: e.get_queue(TENANT, QUEUE),
    "list_queues": lambda e: e.list_queues(TENANT),
    "delete_queue": lambda e: e.delete_queue(TENANT, QUEUE),
    "pause": lambda e: e.pause(TENANT, QUEUE, True),
    "put_topic": lambda e: e.put_topic(TENANT, QUEUE, TopicPolicy()),
    "get_topic": lambda e: e.get_topic(TENANT, QUEUE),
    "list_topics": lambda e: e.list_topics(TENANT),
    "delete_topic": lambda e: e.delete_topic(TENANT, QUEUE),
    "publish": lambda e: e.publish(TENANT, QUEUE, [NewMessage(b"later")]),
    "claim": lambda e: e.claim(TENANT, QUEUE, "c", 1, None),
    "settle": lambda e: e.settle(TENANT, QUEUE, []),
    "route": lambda e: e.route(TENANT, QUEUE, 1),
    "assign": lambda e: e.assign(
        TENANT, QUEUE, filter="TRUE", start=Offset(0), end=Offset(1), offsets=[Offset(0)]
    ),
    "join": lambda e: e.join(TENANT, QUEUE, "c"),
    "leave": lambda e: e.leave(TENANT, QUEUE, "c"),
    "replay": lambda e: e.replay(TENANT, QUEUE, ReplaySource.DONE, None, 1),
    "purge": lambda e: e.purge(TENANT, QUEUE, State.DONE, None, 1),
    "cancel": lambda e: e.cancel(TENANT, MessageId(0)),
    "peek": lambda e: e.peek(TENANT, QUEUE, State.DONE, None, 1),
    "sweep": lambda e: e.sweep(),
    "archived": lambda e: e.archived(TENANT, Offset(0), StoreIdentity("0" * 32, "0" * 32)),
    "identity": lambda e: e.identity(TENANT),
    "new_epoch": lambda e: e.new_epoch(),
    "put_document": lambda e: e.put_document("keys", "k1", b"x"),
    "add_document": lambda e: e.add_document("keys", "k1", b"x"),
    "batch": lambda e: e.batch(TENANT, QUEUE, "b"),
    "get_document": lambda e: e.get_document("keys", "k1"),
    "list_documents": lambda e: e.list_documents("keys"),
    "delete_document": lambda e: e.delete_document("keys", "k1"),
    "tenants": lambda e: e.tenants(),
    "behind": lambda e: e.behind(),
    "next_due": lambda e: e.next_due(TENANT, QUEUE),
    "read_log": lambda e: e.read_log(TENANT, Offset(0), 1),
    "log_end": lambda e: e.log_end(TENANT),
    "log_trimmed": lambda e: e.log_trimmed(TENANT),
    "find": lambda e: e.find(TENANT, QUEUE, "i"),
    "message": lambda e: e.message(TENANT, MessageId(0)),
    "result": lambda e: e.result(TENANT, QUEUE, MessageId(0)),
    "history": lambda e: e.history(TENANT, MessageId(0)),
    "stats": lambda e: e.stats(TENANT, QUEUE),
}


def test_every_verb_is_tried() -> None:
    assert VERBS.keys() | {"close"} == Engine.__abstractmethods__


async def payloads(engine: Engine) -> list[bytes | None]:
    page = await engine.read_log(TENANT, Offset(0), ALL, payloads=True)
    return [entry.payload for entry in page.entries]


@law("P2")
@each_fault
@each_thread
async def test_a_refused_commit_fails_all_who_waited_and_all_after(
    fault: str, inline: bool
) -> None:
    adapter, clock = FaultyAdapter(inline=inline), FakeClock()
    engine = await open_on(adapter, clock)
    await engine.publish(TENANT, QUEUE, [NewMessage(b"safe")])
    getattr(adapter, fault)()
    replies = await asyncio.gather(
        *(engine.publish(TENANT, QUEUE, [NewMessage(b"%d" % n)]) for n in range(5)),
        engine.claim(TENANT, QUEUE, "c", 1, None),
        return_exceptions=True,
    )
    assert [type(reply) for reply in replies] == [CommitFailed] * 6
    calls = adapter.calls
    for name, verb in VERBS.items():
        with pytest.raises(CommitFailed):
            pytest.fail(f"{name} answered {await verb(engine)}")
    await engine.close()
    assert adapter.calls == calls, "nothing is written after a refused commit"
    assert adapter.closed


@law("P2")
@each_fault
@pytest.mark.parametrize("seed", range(6))
async def test_after_a_refused_commit_the_store_opens_on_a_whole_state(
    fault: str, seed: int
) -> None:
    """Every commit of a random program is refused once; the one before it is there."""
    outcomes = set()
    checked = 0
    for nth in range(1, 40, 2):
        adapter, clock = FaultyAdapter(seed=100 * seed + nth), FakeClock()
        engine = await open_on(adapter, clock)
        program = Program(engine, clock, seed)
        await program.begin()
        last = adapter.calls + nth - 1
        getattr(adapter, fault)(nth)
        before, now = None, 0
        with contextlib.suppress(CommitFailed):
            while True:
                if adapter.calls >= last:
                    before, now = await everything(engine), clock.now()
                await program.step()
        await engine.close()
        where = f"seed {seed}, commit {nth}"
        if before is None:
            continue  # It was inside a step of several verbs.
        checked += 1
        survivor = await open_on(adapter.process_loss(), FakeClock(now))
        after = await everything(survivor)
        outcomes.add(after == before)
        if fault == "fail_space":
            assert after == before, where
        for info in await survivor.list_queues(TENANT):
            assert all(len(s) == 1 for s in (await states(survivor, info.name)).values()), where
        await survivor.publish(TENANT, "orders", [NewMessage(b"works again")])
        await survivor.close()
    assert outcomes == ({True} if fault == "fail_space" else {True, False})
    assert checked > 15


@law("P2", "P4")
async def test_a_publish_of_unknown_outcome_can_be_repeated() -> None:
    """With its idempotency ids it is there once, whether or not the disk had kept it."""
    kept = set()
    for seed in range(12):
        adapter, clock = FaultyAdapter(seed=seed), FakeClock()
        engine = await open_on(adapter, clock)
        batch = [NewMessage(b"a", id="a"), NewMessage(b"b", id="b")]
        adapter.fail_sync()
        with pytest.raises(CommitFailed):
            await engine.publish(TENANT, QUEUE, batch)
        await engine.close()
        engine = await open_on(adapter.process_loss(), clock)
        kept.add(len(await payloads(engine)))
        await engine.publish(TENANT, QUEUE, batch)
        assert await payloads(engine) == [b"a", b"b"], f"seed {seed}"
        await engine.close()
    assert kept == {0, 2}


@law("P1")
async def test_a_refused_commit_takes_nothing_that_was_acknowledged() -> None:
    for seed in range(12):
        adapter, clock = FaultyAdapter(seed=seed), FakeClock()
        engine = await open_on(adapter, clock)
        await engine.publish(TENANT, QUEUE, [NewMessage(b"safe")])
        await engine.publish(TENANT, QUEUE, [NewMessage(b"written")], "os")
        adapter.fail_sync()
        with pytest.raises(CommitFailed):
            await engine.publish(TENANT, QUEUE, [NewMessage(b"unknown")])
        await engine.close()
        survivor = await open_on(adapter.power_loss(), clock)
        left = await payloads(survivor)
        assert left == [b"safe", b"written", b"unknown"][: len(left)], f"seed {seed}"
        assert left, f"seed {seed}"
        await survivor.close()


# -- sectors that cannot be read -----------------------------------------------------------


PAYLOAD, ATTEMPTS, TRAIL = b"\x01\x01", b"\x01\x05", b"\x01\x07\x06"


async def granted_once(engine: Engine) -> list[Delivery]:
    """Three messages; the first was nacked and is claimed again, with the second."""
    await engine.publish(TENANT, QUEUE, [NewMessage(b"%d" % number) for number in range(3)])
    (first,) = await engine.claim(TENANT, QUEUE, "c", 1, 1000)
    await engine.settle(TENANT, QUEUE, [Nack(first.receipt, "again", 0)])
    return await engine.claim(TENANT, QUEUE, "c", 2, 1000)


async def claim(engine: Engine, clock: FakeClock, held: list[Delivery]) -> None:
    await engine.claim(TENANT, QUEUE, "c", 5, 1000)


async def nack(engine: Engine, clock: FakeClock, held: list[Delivery]) -> None:
    await engine.settle(TENANT, QUEUE, [Nack(item.receipt, "again", 0) for item in held])


async def lapse(engine: Engine, clock: FakeClock, held: list[Delivery]) -> None:
    clock.advance(1000)
    await engine.claim(TENANT, QUEUE, "c", 5, 1000)


async def sweep(engine: Engine, clock: FakeClock, held: list[Delivery]) -> None:
    clock.advance(1000)
    await engine.sweep()


@law("S3", "C5")
@pytest.mark.parametrize(
    "verb, record",
    [
        pytest.param(claim, PAYLOAD, id="claim-payload"),
        pytest.param(nack, TRAIL, id="nack-trail"),
        pytest.param(lapse, TRAIL, id="lapse-trail"),
        pytest.param(lapse, PAYLOAD, id="lapse-payload"),
        pytest.param(lapse, ATTEMPTS, id="lapse-attempts"),
        pytest.param(sweep, TRAIL, id="sweep-trail"),
    ],
)
async def test_a_read_that_fails_loses_no_delivery(
    verb: Callable[[Engine, FakeClock, list[Delivery]], Awaitable[None]], record: bytes
) -> None:
    """The verb that met it is refused, and every delivery is still in one state (S3, C5)."""
    adapter, clock = FaultyAdapter(), FakeClock()
    engine = await open_on(adapter, clock)
    held = await granted_once(engine)
    await engine.close()
    # Opened again, the engine has nothing in memory that it read ahead.
    adapter = adapter.survivor(len(adapter.journal))
    engine = await open_on(adapter, clock)
    adapter.fail_reads(lambda key: key.startswith(record))
    with pytest.raises(StoreUnavailable):
        await verb(engine, clock, held)
    adapter.fail_reads(None)
    await nothing_is_lost(engine, adapter, clock)


async def nothing_is_lost(engine: Engine, adapter: FaultyAdapter, clock: FakeClock) -> None:
    """Three messages, each in one state and to be had, now or after opening again."""
    try:
        assert sorted(await states(engine, QUEUE)) == [0, 1, 2]
        await engine.publish(TENANT, "other", [NewMessage(b"a commit")])
    except PenstockError:
        # An engine may refuse to go on instead; then the store has to be opened again.
        await engine.close()
        engine = await open_on(adapter.survivor(len(adapter.journal)), clock)
    reopened = await open_on(adapter.survivor(len(adapter.journal)), clock)
    for one in (engine, reopened):
        found = await states(one, QUEUE)
        assert sorted(found) == [0, 1, 2]
        assert all(len(where) == 1 for where in found.values())
        clock.advance(10_000)
        deliveries = await one.claim(TENANT, QUEUE, "c", 5, 1000)
        assert sorted(item.message.id for item in deliveries) == [0, 1, 2]
        await one.settle(TENANT, QUEUE, [Ack(item.receipt) for item in deliveries])
        await one.close()
