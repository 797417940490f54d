"""Power loss at every commit (P1, P2, P3, S1, S2, S3): the store is what it was after one.

Of what was written some prefix survives, at least everything up to the last fsync. So
every disk that a power loss can leave is the state after the n-th commit for some n, and
every n is tried: the store has to open, and to show exactly what it showed then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from penstock.model.delivery import Ack
from penstock.model.message import MessageId, NewMessage, Offset, PublishReply
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultyAdapter
from penstock.testing.laws import law
from tests.crash.program import ALL, TENANT, Program, everything, open_on, states

STEPS = 60


class Moment:
    """What a client knew after a verb, and what there was to see."""

    def __init__(self, now: int, program: Program, seen: Mapping[str, object]) -> None:
        self.now = now
        self.held = dict(program.held)
        self.acked = dict(program.acked)
        self.seen = seen


@law("P1", "S3")
@pytest.mark.parametrize("seed", range(8))
async def test_every_prefix_of_commits_is_a_whole_state(seed: int) -> None:
    adapter, clock = FaultyAdapter(seed=seed), FakeClock()
    engine = await open_on(adapter, clock)
    program = Program(engine, clock, seed)
    await program.begin()
    begun = len(adapter.journal)
    moments: dict[int, Moment] = {}
    for _ in range(STEPS):
        await program.step()
        # A later verb that committed nothing leaves a later moment of the same commit.
        moments[len(adapter.journal)] = Moment(clock.now(), program, await everything(engine))
    await engine.close()
    assert len(moments) > STEPS // 2
    now = FakeClock().now()
    for writes in range(begun, len(adapter.journal) + 1):
        moment = moments.get(writes)
        now = now if moment is None else moment.now
        clock = FakeClock(now)
        survivor = await open_on(adapter.survivor(writes), clock)
        where = f"seed {seed}, after write {writes}"
        if moment is not None:
            assert await everything(survivor) == moment.seen, where
            await still_settles(survivor, moment, where)
        for info in await survivor.list_queues(TENANT):
            found = await states(survivor, info.name)
            assert all(len(where_) == 1 for where_ in found.values()), where
        await survivor.close()


async def still_settles(engine: Engine, moment: Moment, where: str) -> None:
    """Every claim is still held, and every ack can be repeated (S1, S2)."""
    for queue in {*moment.held.values(), *moment.acked.values()}:
        in_flight = (await engine.peek(TENANT, queue, State.IN_FLIGHT, None, ALL)).items
        held = [receipt for receipt, place in moment.held.items() if place == queue]
        acked = [receipt for receipt, place in moment.acked.items() if place == queue]
        reply = await engine.settle(TENANT, queue, [Ack(receipt) for receipt in held + acked])
        taken = [outcome.ok for outcome in reply.outcomes]
        # The program remembers lapsed claims too; those are stale, every other one counts.
        assert sum(taken[: len(held)]) == len(in_flight), where
        assert all(taken[len(held) :]), where


@law("P1", "P2")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "thread"])
async def test_concurrent_batches_survive_whole(seed: int, inline: bool) -> None:
    """Group commit: many batches share a commit, and each is there whole or not at all."""
    adapter, clock = FaultyAdapter(seed=seed, inline=inline), FakeClock()
    engine = await open_on(adapter, clock)
    replies: list[tuple[int, PublishReply]] = []

    async def produce(name: int) -> None:
        for number in range(5):
            batch = [NewMessage(b"%d/%d/%d" % (name, number, place)) for place in range(3)]
            durability = "os" if name % 3 == 0 else "fsync"
            reply = await engine.publish(TENANT, "orders", batch, durability)
            replies.append((len(adapter.journal), reply))

    await asyncio.gather(*(produce(name) for name in range(12)))
    await engine.close()
    assert len(adapter.journal) < 12 * 5
    for writes in range(len(adapter.journal) + 1):
        survivor = await open_on(adapter.survivor(writes), clock)
        page = await survivor.read_log(TENANT, Offset(0), ALL, payloads=True)
        there = {entry.message.id for entry in page.entries}
        for known_at, reply in replies:
            kept = [item.id in there for item in reply.messages]
            assert all(kept) or not any(kept), f"seed {seed}, after write {writes}: P2"
            if known_at <= writes:
                assert all(kept), f"seed {seed}, after write {writes}: P1"
        if there:
            assert set(await states(survivor, "orders")) == there
        await survivor.close()


@law("P1")
@pytest.mark.parametrize("seed", range(20))
async def test_what_a_reply_promises(seed: int) -> None:
    """``os`` says so and may be lost; the next ``fsync`` makes everything before it safe."""
    adapter, clock = FaultyAdapter(seed=seed), FakeClock()
    engine = await open_on(adapter, clock)

    async def publish(durability: str) -> MessageId:
        reply = await engine.publish(TENANT, "orders", [NewMessage(b"x")], durability)
        assert reply.durability == durability
        return reply.messages[0].id

    async def left(disk: FaultyAdapter) -> set[MessageId]:
        survivor = await open_on(disk, clock)
        page = await survivor.read_log(TENANT, Offset(0), ALL)
        await survivor.close()
        return {entry.message.id for entry in page.entries}

    first = await publish("fsync")
    unsafe = [await publish("os"), await publish("os")]
    assert await left(adapter.process_loss()) == {first, *unsafe}
    survived = await left(adapter.power_loss())
    assert survived in ({first}, {first, unsafe[0]}, {first, *unsafe}), f"seed {seed}"
    last = await publish("fsync")
    assert await left(adapter.power_loss()) == {first, *unsafe, last}, f"seed {seed}"
    await engine.close()


@law("P1")
async def test_a_power_loss_can_take_what_was_only_written() -> None:
    """The disk above does lose things: over many seeds every outcome comes up."""
    outcomes = set()
    for seed in range(30):
        adapter = FaultyAdapter(seed=seed)
        adapter.write({b"a": b"1"}, (), True)
        adapter.write({b"b": b"2"}, (), False)
        adapter.write({b"c": b"3"}, (), False)
        outcomes.add(tuple(adapter.power_loss().contents()))
    assert outcomes == {(b"a",), (b"a", b"b"), (b"a", b"b", b"c")}
