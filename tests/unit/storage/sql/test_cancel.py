"""cancel on two servers of one database, against claims, settles and extends: S1, C1, Q2."""

from __future__ import annotations

import asyncio

from penstock.model.delivery import Ack, CancelReply, Extend, Nack
from penstock.model.message import MessageId
from penstock.model.states import State
from penstock.testing.laws import law
from tests.unit.storage.sql.pairs import ROUNDS, TENANT, Pair, claim, publish, settled


async def states(pair: Pair, message_id: int) -> list[State]:
    found = await pair.b.message(TENANT, MessageId(message_id))
    return [item.state for item in found.deliveries]


async def counted(pair: Pair) -> int:
    """The deliveries that stats counts; the first message of the pair is one of them."""
    stats = await pair.b.stats(TENANT, "old")
    return stats.depth + stats.done + stats.failed + stats.expired


@law("S1")
async def test_a_claim_of_one_is_cancelled_by_the_other(pair: Pair) -> None:
    await publish(pair.a, "old", b"1")
    zero, one = await claim(pair.a, "old")
    assert await pair.b.cancel(TENANT, one.message.id) == CancelReply(1, ("old",))
    # This server has cached the row that it wrote for both.
    assert await settled(pair.a, "old", Ack(zero.receipt), Ack(one.receipt)) == ["ok", "stale"]
    assert await states(pair, one.message.id) == []
    assert await counted(pair) == 1


@law("S1")
async def test_an_ack_and_a_cancel_at_the_same_time(pair: Pair) -> None:
    await claim(pair.a, "old")
    for _ in range(ROUNDS):
        first, second = await publish(pair.a, "old", b"1", b"2")
        held = await claim(pair.a, "old")
        reply, verdicts = await asyncio.gather(
            pair.b.cancel(TENANT, MessageId(first)),
            settled(pair.a, "old", *(Ack(item.receipt) for item in held)),
        )
        assert reply.count == 1
        assert verdicts[0] in {"ok", "stale"}
        assert verdicts[1] == "ok"
        assert await states(pair, first) == []
        assert await states(pair, second) == [State.DONE]
    assert await counted(pair) == 1 + ROUNDS


@law("S1")
async def test_an_extend_or_a_nack_and_a_cancel_at_the_same_time(pair: Pair) -> None:
    """Both move a delivery to another row while the cancel waits for the old one."""
    await claim(pair.a, "old")
    for number in range(ROUNDS):
        ids = await publish(pair.a, "old", b"1", b"2")
        held = await claim(pair.a, "old")
        assert [item.message.id for item in held] == ids
        receipt = held[number % 2].receipt
        moved = Extend(receipt, 120_000) if number % 4 < 2 else Nack(receipt, delay_ms=600_000)
        reply, _ = await asyncio.gather(
            pair.b.cancel(TENANT, held[number % 2].message.id),
            pair.a.settle(TENANT, "old", [moved]),
        )
        assert reply.count == 1
        assert await states(pair, held[number % 2].message.id) == []
        assert await settled(pair.a, "old", Ack(receipt)) == ["stale"]
    assert await counted(pair) == 1 + ROUNDS


@law("C1")
async def test_a_claim_and_a_cancel_at_the_same_time(pair: Pair) -> None:
    await claim(pair.a, "old")
    for _ in range(ROUNDS):
        ids = await publish(pair.a, "old", b"1", b"2", b"3")
        reply, held = await asyncio.gather(
            pair.b.cancel(TENANT, MessageId(ids[1])), claim(pair.a, "old")
        )
        assert reply.count == 1
        given = [item.message.id for item in held]
        assert given in (ids, [ids[0], ids[2]])
        verdicts = await settled(pair.a, "old", *(Ack(item.receipt) for item in held))
        expected = ["stale" if item.message.id == ids[1] else "ok" for item in held]
        assert verdicts == expected
    assert await counted(pair) == 1 + 2 * ROUNDS


async def test_two_cancels_at_the_same_time_remove_it_once(pair: Pair) -> None:
    for _ in range(ROUNDS):
        (message_id,) = await publish(pair.a, "old", b"1")
        replies = await asyncio.gather(
            *(one.cancel(TENANT, MessageId(message_id)) for one in (pair.a, pair.b))
        )
        assert sorted(reply.count for reply in replies) == [0, 1]
    assert await counted(pair) == 1
