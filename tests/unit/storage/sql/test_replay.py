"""Replay in many parts, over replaced messages, and beside other servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.filters import parse
from penstock.model.delivery import ReplaySource
from penstock.model.message import MessageId
from penstock.model.queue import Ordering, Start
from penstock.model.states import State, Transition
from penstock.storage.sql import group_cursor, replay
from penstock.testing.conformance.harness import TENANT, Store, ids_of, msg
from penstock.testing.laws import law
from tests.unit.storage.sql.ordered import Pair, opened_pair

FAILED, DONE, LOG = ReplaySource.FAILED, ReplaySource.DONE, ReplaySource.LOG


@pytest.fixture(params=["postgresql", "mysql"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with opened_pair(request.param) as pair:
        yield pair


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs a statement, few deliveries a part, few segments at once."""
    monkeypatch.setattr(group_cursor, "_FIRST_GROUPS", 2)
    monkeypatch.setattr(group_cursor, "_MAX_GROUPS", 3)
    monkeypatch.setattr(replay, "_BATCH", 3)
    monkeypatch.setattr(replay, "_FIRST_SEGMENTS", 1)
    monkeypatch.setattr(replay, "_MAX_SEGMENTS", 2)


async def _ended(one: Store, source: ReplaySource) -> list[MessageId]:
    """Twenty messages of three priorities that were acked or rejected in one order or another."""
    ids: list[MessageId] = []
    for _ in range(2):
        ids += await one.publish(*(msg(priority=3 + n % 3, n=n) for n in range(10)))
    for limit in (3, 1, 7, 9):
        for delivery in (await one.claim(limit=limit))[::-1]:
            await (one.reject(delivery, "no") if source is FAILED else one.ack(delivery))
    return sorted(ids)


def _before_hold(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Do something between the moment a replay selects and the moment it locks, once."""
    todo = [act]

    async def hold(*arguments: Any) -> Any:
        while todo:
            await todo.pop()()
        return await group_cursor.hold(*arguments)

    monkeypatch.setattr(replay, "hold", hold)


@pytest.mark.parametrize("source", [FAILED, DONE, LOG])
async def test_many_parts_are_one_replay(
    pair: Pair, small_parts: None, source: ReplaySource
) -> None:
    await pair.first.queue()
    ids = await _ended(pair.first, source)
    engine = pair.second.engine
    now = pair.clock.now()
    reply = await engine.replay(TENANT, "q", source, None, 99, rate=10, dry_run=True)
    assert (reply.count, [s.message.id for s in reply.sample]) == (20, ids[:10])
    reply = await engine.replay(TENANT, "q", source, None, 17, rate=10, replay_id="r")
    assert (reply.count, reply.skipped) == (17, 0)
    assert [s.message.id for s in reply.sample] == ids[:10]
    delayed = await pair.first.browse("q", State.DELAYED)
    found = sorted((s.message.id, s.at) for s in delayed)
    assert found == [(ids[n], now + n * 100) for n in range(1, 17)]
    assert await pair.first.ids("q", State.AVAILABLE) == ids[:1]
    reply = await engine.replay(TENANT, "q", source, parse("n >= 8"), 9, replay_id="r")
    assert (reply.count, reply.skipped) == (2, 0)
    reply = await engine.replay(TENANT, "q", source, None, 99, replay_id="r")
    assert reply.count == 1


@law("S3")
@pytest.mark.parametrize("source", [FAILED, DONE, LOG])
async def test_a_replay_that_fails_in_its_last_part_moves_nothing(
    pair: Pair, small_parts: None, source: ReplaySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.first.queue()
    await _ended(pair.first, source)
    before = await pair.first.picture("q")
    parts = 0

    async def hold(*arguments: Any) -> Any:
        nonlocal parts
        parts += 1
        if parts == 5:
            raise BadInput("stop here", field="limit")
        return await group_cursor.hold(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(replay, "hold", hold)
        with pytest.raises(BadInput):
            await pair.first.engine.replay(TENANT, "q", source, None, 99, replay_id="r")
    assert parts == 5
    assert await pair.first.picture("q") == before
    reply = await pair.first.engine.replay(TENANT, "q", source, None, 99, replay_id="r")
    assert (reply.count, reply.skipped) == (20, 0)


async def test_what_another_server_has_claimed_meanwhile_stays_there(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.first.queue()
    ids = await pair.first.publish(*[b"x"] * 6)
    for delivery in await pair.first.claim(limit=6):
        await pair.first.reject(delivery)
    _before_hold(monkeypatch, lambda: pair.second.claim("q.dlq", limit=2))
    reply = await pair.first.engine.replay(TENANT, "q", FAILED, None, 99, rate=1)
    assert [s.message.id for s in reply.sample] == ids[2:]
    # They are spread as if the others had never been there.
    assert await pair.first.ids("q", State.AVAILABLE) == ids[2:3]
    assert await pair.first.ids("q", State.DELAYED) == ids[3:]
    assert await pair.first.ids("q.dlq", State.IN_FLIGHT) == ids[:2]


async def test_the_limit_is_reached_though_some_were_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.first.queue()
    ids = await pair.first.publish(*[b"x"] * 6)
    for delivery in await pair.first.claim(limit=6):
        await pair.first.reject(delivery)
    _before_hold(monkeypatch, lambda: pair.second.claim("q.dlq", limit=2))
    reply = await pair.first.engine.replay(TENANT, "q", FAILED, None, 3)
    assert (reply.count, [s.message.id for s in reply.sample]) == (3, ids[2:5])
    assert await pair.first.ids("q", State.FAILED) == ids[5:]


@law("S3")
async def test_two_servers_replay_the_same_log_once(pair: Pair, small_parts: None) -> None:
    """What one brings in is live for the other."""
    ids = [i for _ in range(6) for i in await pair.first.publish(*[b"x"] * 5)]
    await pair.first.queue()
    replies = await asyncio.gather(
        *(one.engine.replay(TENANT, "q", LOG, None, 99) for one in (pair.first, pair.second) * 2)
    )
    assert sorted(reply.count for reply in replies) == [0, 0, 0, 30]
    assert ids_of(await pair.second.claim(limit=99)) == ids


@law("S3")
async def test_a_replay_and_the_router_bring_nothing_in_twice(
    pair: Pair, small_parts: None
) -> None:
    ids = [i for _ in range(6) for i in await pair.first.publish(*[b"x"] * 5)]
    await pair.first.queue(start=Start(Start.EARLIEST))

    async def catch_up() -> None:
        while (await pair.second.engine.route(TENANT, "q", 4)).cursor is not None:
            await pair.second.engine.purge(TENANT, "q", State.AVAILABLE, None, 1)

    async def bring_back() -> None:
        for _ in range(10):
            await pair.first.engine.replay(TENANT, "q", LOG, None, 99)

    await asyncio.gather(catch_up(), bring_back())
    await pair.first.engine.replay(TENANT, "q", LOG, None, 99)
    assert await pair.first.ids("q", State.AVAILABLE) == ids


async def test_a_replaced_message_comes_back_as_it_is_now(pair: Pair, small_parts: None) -> None:
    """In its own place among the others, and once, however often it was replaced."""
    await pair.first.queue("keeper")
    first, second, third = await pair.first.publish(b"1", msg(b"2", key="k", n=0), b"3")
    for n in (1, 2, 3):
        await pair.second.publish(msg(b"new %d" % n, key="k", n=n))
    await pair.first.queue()
    reply = await pair.first.engine.replay(TENANT, "q", LOG, None, 99)
    assert [s.message.id for s in reply.sample] == [first, second, third]
    claimed = await pair.second.claim(limit=9)
    assert [d.payload for d in claimed] == [b"1", b"new 3", b"3"]
    assert (claimed[1].message.id, claimed[1].message.headers) == (second, {"n": 3})


async def test_a_replaced_message_whose_first_entry_is_gone_comes_back(pair: Pair) -> None:
    """Retention may have removed the entry that the message has its id from."""
    await pair.first.queue("keeper")
    (message_id,) = await pair.first.publish(msg(b"old", key="k"))
    await pair.first.publish(msg(b"newer", key="k"))
    await pair.first.publish(msg(b"newest", key="k"))
    await pair.first.engine.delete_queue(TENANT, "keeper")
    pair.sql(f"DELETE FROM penstock_log WHERE segment = {message_id >> 14}")
    await pair.second.queue()
    reply = await pair.second.engine.replay(TENANT, "q", LOG, None, 99)
    assert [s.message.id for s in reply.sample] == [message_id]
    assert [d.payload for d in await pair.second.claim(limit=9)] == [b"newest"]


@law("G1")
async def test_what_has_left_the_log_is_not_brought_in(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: a delivery without its message would be worse than none."""
    gone, kept = [(await pair.first.publish(b"x"))[0] for _ in range(2)]
    await pair.first.queue()
    shared = replay.share  # type: ignore[attr-defined]

    async def share(*arguments: Any) -> Any:
        pair.sql(f"DELETE FROM penstock_log WHERE segment = {gone >> 14}")
        return await shared(*arguments)

    monkeypatch.setattr(replay, "share", share)
    reply = await pair.first.engine.replay(TENANT, "q", LOG, None, 99, replay_id="r")
    assert [s.message.id for s in reply.sample] == [kept]
    assert await pair.first.ids("q", State.AVAILABLE) == [kept]


@law("O1")
async def test_done_before_the_queue_was_ordered_comes_back_into_its_partition(
    pair: Pair,
) -> None:
    await pair.first.queue()
    ids = await pair.first.publish(*(msg(partition_key=p) for p in "aba"))
    for delivery in await pair.first.claim(limit=9):
        await pair.first.ack(delivery)
    await pair.first.queue(ordering=Ordering.PARTITION)
    assert (await pair.first.engine.replay(TENANT, "q", DONE, None, 9)).count == 3
    stats = await pair.first.engine.stats(TENANT, "q")
    assert [(p.partition, p.unsettled) for p in stats.partitions] == [("a", 2), ("b", 1)]
    assert ids_of(await pair.second.claim(limit=9)) == ids[:2]


async def test_history_goes_on_with_the_replay(pair: Pair) -> None:
    """It begins with the publish, also in a queue that the replay brought the message to."""
    await pair.first.queue("q")
    (message_id,) = await pair.first.publish(b"x")
    await pair.first.queue("later")
    pair.clock.advance(5)
    await pair.first.ack(await pair.first.claim_one())
    pair.clock.advance(5)
    for queue in ("q", "later"):
        assert (await pair.first.engine.replay(TENANT, queue, LOG, None, 9)).count == 1
    pair.clock.advance(5)
    await pair.first.claim_one("later")
    events = await pair.second.engine.history(TENANT, message_id)
    replayed = (Transition.REPLAY, State.AVAILABLE)
    assert [(e.transition, e.state) for e in events if e.queue == "q"] == [
        (Transition.PUBLISH, State.AVAILABLE),
        (Transition.CLAIM, State.IN_FLIGHT),
        (Transition.ACK, State.DONE),
        replayed,
    ]
    assert [(e.transition, e.state) for e in events if e.queue == "later"] == [
        (Transition.PUBLISH, State.AVAILABLE),
        replayed,
        (Transition.CLAIM, State.IN_FLIGHT),
    ]
