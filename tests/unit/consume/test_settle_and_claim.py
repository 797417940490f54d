"""Settlements of a consumption share calls, and take the next claim with them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.consume import Consumption, Lease
from penstock.errors import BadInput, Busy, StaleReceipt, Unreachable
from penstock.model.delivery import Ack, Nack
from penstock.model.limits import MAX_PAYLOAD_BYTES
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.consume.conftest import pass_time, publish, turns

if TYPE_CHECKING:
    from tests.unit.consume.conftest import Consume, Spy


async def take(leases: Consumption, count: int) -> list[Lease]:
    return [await asyncio.wait_for(anext(leases), 60) for _ in range(count)]


async def test_a_settlement_brings_the_next_delivery(q: Spy, consume: Consume) -> None:
    await publish(q, 10)
    leases = consume(max_in_flight=1)
    for number in range(10):
        async with (await take(leases, 1))[0] as lease:
            assert lease.payload == b"%d" % number
    # One claim of its own, and then one call per message: it settles and claims.
    assert (len(q.claims), q.combined, q.settles) == (11, 10, 0)


async def test_tasks_that_finish_together_share_a_call(q: Spy, consume: Consume) -> None:
    await publish(q, 64)
    leases = consume(max_in_flight=32)
    held = await take(leases, 16)
    await asyncio.gather(*(lease.ack() for lease in held))
    assert q.settled[Ack] == 16
    assert q.combined + q.settles == 1


async def test_what_finishes_during_a_call_goes_into_the_next(q: Spy, consume: Consume) -> None:
    await publish(q, 20)
    held = await take(consume(max_in_flight=20), 7)
    q.gate = asyncio.Event()
    acks = [asyncio.create_task(held[0].ack())]
    await turns()
    acks += [asyncio.create_task(lease.ack()) for lease in held[1:]]
    await turns()
    assert q.settled[Ack] == 1
    q.gate.set()
    await asyncio.gather(*acks)
    assert q.settled[Ack] == 7
    assert q.combined + q.settles == 2


async def test_a_call_settles_at_most_half_of_what_may_be_held(q: Spy, consume: Consume) -> None:
    await publish(q, 40)
    held = await take(consume(max_in_flight=20), 20)
    await asyncio.gather(*(lease.ack() for lease in held))
    assert q.settled[Ack] == 20
    assert q.combined + q.settles == 2
    assert q.most_in_flight <= 20


async def test_a_waiting_claim_does_not_delay_settlements(q: Spy, consume: Consume) -> None:
    await publish(q, 2)
    leases = consume(max_in_flight=4)
    first, second = await take(leases, 2)
    waiting = asyncio.ensure_future(anext(leases))
    await turns()
    claims = len(q.claims)
    # The clock stands still: a settlement behind the long poll would never be answered.
    assert (await asyncio.wait_for(first.ack(), 60)).ok
    assert (await asyncio.wait_for(second.nack("no", delay_ms=1_000), 60)).ok
    assert not waiting.done()
    assert (len(q.claims), q.combined, q.settles) == (claims, 0, 2)
    await publish(q, 1)
    assert (await asyncio.wait_for(waiting, 60)).attempts == 1


async def test_an_empty_answer_is_followed_by_a_claim_that_waits(q: Spy, consume: Consume) -> None:
    await publish(q, 1)
    leases = consume(max_in_flight=1)
    async with (await take(leases, 1))[0]:
        pass
    waiting = asyncio.ensure_future(anext(leases))
    await turns()
    assert (len(q.claims), q.combined) == (3, 1)
    await publish(q, 1)
    assert (await asyncio.wait_for(waiting, 60)).payload == b"0"


@law("S1")
async def test_each_caller_gets_its_own_outcome(q: Spy, consume: Consume) -> None:
    await publish(q, 8)
    good, lost, retried = await take(consume(max_in_flight=4), 3)
    await q.release(lost.delivery)
    answers = await asyncio.gather(
        good.ack(b"r"), lost.ack(), retried.nack("x", delay_ms=5), return_exceptions=True
    )
    assert isinstance(answers[1], StaleReceipt)
    assert (good.settled, lost.lost, retried.settled) == (True, True, True)
    assert (q.settled[Ack], q.settled[Nack]) == (2, 1)


@law("E1")
async def test_a_refused_settlement_does_not_refuse_the_others(q: Spy, consume: Consume) -> None:
    await publish(q, 8)
    held = await take(consume(max_in_flight=16), 8)
    results = [b"x"] * 7 + [b"x" * (MAX_PAYLOAD_BYTES + 1)]
    answers = await asyncio.gather(
        *(lease.ack(result) for lease, result in zip(held, results, strict=True)),
        return_exceptions=True,
    )
    assert isinstance(answers[7], BadInput)
    assert [lease.settled for lease in held] == [True] * 7 + [False]
    assert held[7].held
    assert (await held[7].ack()).ok


@pytest.mark.parametrize("error", [BadInput("the claim"), Busy("the claim")])
async def test_a_claim_that_is_refused_does_not_refuse_the_settlement(
    q: Spy, consume: Consume, error: Exception
) -> None:
    await publish(q, 2)
    (lease,) = await take(consume(max_in_flight=1), 1)
    q.faults["claim"] = [error]  # type: ignore[list-item]
    assert (await lease.ack()).ok
    assert q.settles == 1


async def test_an_error_of_the_call_is_raised_by_each_of_its_callers(
    q: Spy, consume: Consume
) -> None:
    await publish(q, 3)
    held = await take(consume(max_in_flight=8), 3)
    q.faults["settle"] = [Unreachable("cable")]
    answers = await asyncio.gather(*(lease.ack() for lease in held), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unreachable] * 3
    assert [lease.held for lease in held] == [True] * 3
    for lease in held:
        assert (await lease.ack()).ok


async def test_a_settlement_that_is_cancelled_before_it_is_sent_does_nothing(
    q: Spy, consume: Consume
) -> None:
    await publish(q, 4)
    first, second = await take(consume(max_in_flight=4), 2)
    q.gate = asyncio.Event()
    acks = [asyncio.create_task(first.ack())]
    await turns()
    acks.append(asyncio.create_task(second.ack()))
    await turns()
    acks[1].cancel()
    q.gate.set()
    await asyncio.gather(*acks, return_exceptions=True)
    await turns()
    assert q.settled[Ack] == 1


async def test_what_comes_with_a_settlement_after_stop_is_released(
    q: Spy, consume: Consume
) -> None:
    await publish(q, 3)
    leases = consume(max_in_flight=1)
    (lease,) = await take(leases, 1)
    q.gate = asyncio.Event()
    ack = asyncio.create_task(lease.ack())
    await turns()
    assert (await q.stats("q")).in_flight == 1  # Message 1, which came with the ack of message 0.
    leases.stop()
    q.gate.set()
    assert (await ack).ok
    assert await anext(leases, None) is None
    stats = await q.stats("q")
    assert (stats.done, stats.in_flight, stats.available) == (1, 0, 2)


async def test_takers_that_are_left_over_are_claimed_for(q: Spy, consume: Consume) -> None:
    """Three tasks wait, one message comes: the other two get the next, without a settlement."""
    leases = consume(max_in_flight=4)
    takers = [asyncio.ensure_future(anext(leases)) for _ in range(3)]
    await turns()
    for number in range(3):
        await publish(q, 1)
        await turns()
        assert sum(taker.done() for taker in takers) == number + 1
    await asyncio.gather(*takers)


async def test_the_leases_of_what_came_with_a_settlement_are_kept(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await publish(q, 2)
    leases = consume(max_in_flight=1)
    (first,) = await take(leases, 1)
    await first.ack()
    (second,) = await take(leases, 1)
    await pass_time(clock, 100_000)
    assert await q.claim("q", consumer="thief") == []
    assert (await second.ack()).ok
