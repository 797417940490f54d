"""consume: bounded prefetch, leases that stay alive, errors that pass, and how it ends."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import State
from penstock.consume import Consumption, Lease
from penstock.errors import (
    BadInput,
    BadName,
    Busy,
    CommitFailed,
    PenstockError,
    UnknownQueue,
    Unreachable,
)
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.consume.conftest import ClockPace, pass_time, publish, turns

if TYPE_CHECKING:
    from tests.unit.consume.conftest import Consume, Spy

LEASE_MS = 30_000


async def take(leases: Consumption, count: int) -> list[Lease]:
    return [await asyncio.wait_for(anext(leases), 60) for _ in range(count)]


# -- handing out -----------------------------------------------------------------------


@law("C4")
async def test_everything_comes_once_and_in_order(q: Spy, consume: Consume) -> None:
    ids = await publish(q, 100)
    seen = []
    async for lease in consume(max_in_flight=7):
        async with lease:
            seen.append(lease.message.id)
        if len(seen) == len(ids):
            break
    assert seen == ids
    assert (await q.stats("q")).done == 100


async def test_it_waits_for_messages(q: Spy, consume: Consume) -> None:
    leases = consume()
    waiting = asyncio.ensure_future(anext(leases))
    await turns()
    assert not waiting.done()
    (number,) = await publish(q, 1)
    assert (await asyncio.wait_for(waiting, 60)).message.id == number
    # One claim waited: it did not ask again and again.
    assert len(q.claims) <= 2


@pytest.mark.parametrize("max_in_flight", [1, 2, 10])
async def test_prefetch_never_passes_max_in_flight(
    q: Spy, consume: Consume, max_in_flight: int
) -> None:
    await publish(q, 50)
    leases = consume(max_in_flight=max_in_flight)
    for number in range(50):
        (lease,) = await take(leases, 1)
        await turns()
        assert (await q.stats("q")).in_flight <= max_in_flight
        # Each end of a claim makes room: a release, a nack and an ack alike.
        await (lease.ack() if number % 3 else lease.nack(delay_ms=1_000_000))
    assert q.most_in_flight <= max_in_flight
    assert sum(q.claims[:1]) == max_in_flight


async def test_what_is_held_and_what_is_buffered_count_together(q: Spy, consume: Consume) -> None:
    await publish(q, 20)
    leases = consume(max_in_flight=10)
    held = await take(leases, 8)
    await turns()
    assert (await q.stats("q")).in_flight == 10
    last = await take(leases, 2)
    waiting = asyncio.ensure_future(anext(leases))
    await turns()
    assert not waiting.done()
    assert (await q.stats("q")).in_flight == 10
    await held[0].ack()
    assert (await asyncio.wait_for(waiting, 60)).message.id > last[-1].message.id


async def test_claims_stay_large(q: Spy, consume: Consume) -> None:
    await publish(q, 320)
    leases = consume(max_in_flight=32)
    for _ in range(320):
        async with (await take(leases, 1))[0]:
            await turns(3)
    # 320 messages in refills of at least half the room.
    assert len(q.claims) <= 320 // 16 + 2


async def test_several_tasks_share_one_consumption(q: Spy, consume: Consume) -> None:
    ids = await publish(q, 60)
    leases = consume(max_in_flight=10)
    seen: list[int] = []

    async def work() -> None:
        async for lease in leases:
            async with lease:
                await asyncio.sleep(0)
                seen.append(lease.message.id)
            if len(seen) == len(ids):
                leases.stop()

    await asyncio.wait_for(asyncio.gather(*(work() for _ in range(5))), 60)
    assert sorted(seen) == ids


async def test_a_taker_that_is_cancelled_takes_nothing_with_it(q: Spy, consume: Consume) -> None:
    leases = consume()
    gone = asyncio.ensure_future(anext(leases))
    await turns()
    gone.cancel()
    ids = await publish(q, 1)
    (lease,) = await take(leases, 1)
    assert lease.message.id == ids[0]


async def test_a_paused_queue_is_waited_for(q: Spy, consume: Consume) -> None:
    await publish(q, 1)
    await q.pause("q")
    waiting = asyncio.ensure_future(anext(consume()))
    await turns()
    assert not waiting.done()
    await q.resume("q")
    assert (await asyncio.wait_for(waiting, 60)).payload == b"0"


async def test_dead_letters_are_consumed_like_anything(q: Spy, consume: Consume) -> None:
    await publish(q, 1)
    (lease,) = await take(consume(), 1)
    await lease.reject("broken")
    (dead,) = await take(consume("q.dlq"), 1)
    assert dead.payload == b"0"
    await dead.ack()
    assert (await q.stats("q")).failed == 0


# -- keeping leases alive --------------------------------------------------------------


@law("C1")
async def test_slow_work_keeps_its_claim(q: Spy, consume: Consume, clock: FakeClock) -> None:
    await publish(q, 1)
    leases = consume(max_in_flight=1)
    (lease,) = await take(leases, 1)
    stolen = []
    async with lease:
        for _ in range(10):
            await pass_time(clock, LEASE_MS)
            stolen += await q.claim("q", consumer="thief")
    assert stolen == []
    assert (await q.message(lease.message.id)).deliveries[0].state is State.DONE
    assert lease.attempts == 1


async def test_one_call_extends_everything_buffered_and_held(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await publish(q, 8)
    leases = consume(max_in_flight=8)
    held = await take(leases, 3)
    await pass_time(clock, LEASE_MS // 2)
    assert [len(call) for call in q.extensions] == [8]
    await pass_time(clock, 4 * LEASE_MS)
    assert (await q.stats("q")).in_flight == 8
    # Not more often than needed: once every third of a lease, and some slack.
    assert len(q.extensions) <= 4 * 3 + 2
    for lease in held + await take(leases, 5):
        assert (await lease.ack()).ok


async def test_short_work_is_not_extended(q: Spy, consume: Consume, clock: FakeClock) -> None:
    leases = consume()
    for _ in range(20):
        await publish(q, 1)
        async with (await take(leases, 1))[0]:
            await pass_time(clock, LEASE_MS // 4)
    assert q.extensions == []


async def test_a_short_lease_is_kept_too(q: Spy, consume: Consume, clock: FakeClock) -> None:
    await publish(q, 1)
    (lease,) = await take(consume(max_in_flight=1, lease_ms=200), 1)
    assert lease.delivery.lease_deadline == lease.delivery.claimed_at + 200
    await pass_time(clock, 2_000)
    assert await q.claim("q", consumer="thief") == []
    assert (await lease.ack()).ok


async def test_a_failed_extension_is_tried_again_before_the_lease_is_over(
    q: Spy, consume: Consume, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(q, 1)
    q.faults["extend"] = [Unreachable("cable"), Unreachable("cable")]
    (lease,) = await take(consume(max_in_flight=1), 1)
    await pass_time(clock, 2 * LEASE_MS)
    assert await q.claim("q", consumer="thief") == []
    assert (await lease.ack()).ok
    assert "not extended" in caplog.text


async def test_what_a_program_asked_for_is_not_shortened(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await publish(q, 1)
    (lease,) = await take(consume(max_in_flight=1), 1)
    asked_at = clock.now()
    await lease.extend(20 * LEASE_MS)
    await pass_time(clock, LEASE_MS)
    (held,) = (await q.message(lease.message.id)).deliveries
    assert held.lease_deadline is not None
    assert held.lease_deadline >= asked_at + 20 * LEASE_MS


@law("C1")
async def test_a_short_extension_does_not_end_the_lease_before_the_next_one(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await publish(q, 1)
    (lease,) = await take(consume(max_in_flight=1), 1)
    await lease.extend(1_000)
    for _ in range(60):
        await pass_time(clock, 1_000)
        assert await q.claim("q", consumer="thief") == []
    assert (await lease.ack()).ok


@law("S1")
async def test_a_claim_lost_in_the_buffer_is_not_handed_out(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await publish(q, 3)
    leases = consume(max_in_flight=3)
    (first,) = await take(leases, 1)
    await first.ack()
    await q.release(q.claimed[1])
    await pass_time(clock, LEASE_MS)
    rest = await take(leases, 2)
    # The lost one comes back as the new claim that it is, and works.
    assert sorted((item.message.id, item.attempts) for item in rest) == [(1, 2), (2, 1)]
    for lease in rest:
        assert (await lease.ack()).ok


# -- errors ----------------------------------------------------------------------------


async def test_an_error_that_may_pass_is_waited_out(
    q: Spy, consume: Consume, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(q, 1)
    q.faults["claim"] = [Unreachable("down"), Busy("full", retry_after_ms=7_000)]
    waiting = asyncio.ensure_future(anext(consume()))
    await pass_time(clock, 150)
    await pass_time(clock, 6_000)
    assert not waiting.done()
    await pass_time(clock, 1_500)
    assert (await asyncio.wait_for(waiting, 60)).payload == b"0"
    assert "next try in 7000 ms" in caplog.text


async def test_a_server_that_is_away_is_waited_for_without_end(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await publish(q, 1)
    q.faults["claim"] = [Unreachable("down") for _ in range(100)]
    waiting = asyncio.ensure_future(anext(consume()))
    await pass_time(clock, 100 * 10_000)
    assert (await asyncio.wait_for(waiting, 60)).payload == b"0"


async def test_a_store_that_stays_broken_is_told(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    q.faults["claim"] = [CommitFailed("disk full") for _ in range(100)]
    waiting = asyncio.ensure_future(anext(consume()))
    await pass_time(clock, 100 * 10_000)
    with pytest.raises(CommitFailed):
        await asyncio.wait_for(waiting, 60)


async def test_an_error_that_cannot_pass_is_raised_and_nothing_is_kept(
    q: Spy, consume: Consume
) -> None:
    await publish(q, 4)
    leases = consume(max_in_flight=4)
    (held,) = await take(leases, 1)
    q.faults["claim"] = [BadInput("no") for _ in range(10)]
    await held.ack()
    for lease in await take(leases, 3):
        await lease.release()
    with pytest.raises(BadInput):
        await take(leases, 1)
    with pytest.raises(BadInput):
        await take(leases, 1)
    assert (await q.stats("q")).in_flight == 0


async def test_an_unknown_queue_is_raised(consume: Consume) -> None:
    with pytest.raises(UnknownQueue):
        await take(consume("nowhere"), 1)


async def test_a_queue_that_goes_away_ends_it(q: Spy, consume: Consume, clock: FakeClock) -> None:
    await publish(q, 1)
    leases = consume()
    (held,) = await take(leases, 1)
    waiting = asyncio.ensure_future(anext(leases))
    await turns()
    await q.delete_queue("q")
    with pytest.raises(UnknownQueue):
        await asyncio.wait_for(waiting, 60)
    await pass_time(clock, LEASE_MS)
    assert held.lost


@law("E1")
@pytest.mark.parametrize(
    "options, kind, field",
    [
        ({"queue": "no such/name"}, BadName, "queue"),
        ({"consumer": "no such/name"}, BadName, "consumer"),
        ({"max_in_flight": 0}, BadInput, "max_in_flight"),
        ({"max_in_flight": 10_001}, BadInput, "max_in_flight"),
        ({"max_in_flight": True}, BadInput, "max_in_flight"),
        ({"lease_ms": 0}, BadInput, "lease_ms"),
        ({"lease_ms": 13 * 3600 * 1000}, BadInput, "lease_ms"),
    ],
)
async def test_bad_options_are_refused_at_once(
    q: Spy, options: dict, kind: type[PenstockError], field: str
) -> None:
    with pytest.raises(kind) as caught:
        q.consume(**{"queue": "q", **options})
    assert caught.value.field == field


# -- the end ---------------------------------------------------------------------------


async def test_stop_releases_what_was_not_begun_and_keeps_what_is_held(
    q: Spy, consume: Consume, clock: FakeClock
) -> None:
    await publish(q, 20)
    leases = consume(max_in_flight=10)
    (held,) = await take(leases, 1)
    await turns()
    leases.stop()
    with pytest.raises(StopAsyncIteration):
        await anext(leases)
    stats = await q.stats("q")
    assert (stats.in_flight, stats.available) == (1, 19)
    await pass_time(clock, 3 * LEASE_MS)
    assert (await held.ack()).ok
    # C2: what was released counts no attempt.
    await q.update_queue("q", max_attempts=1)
    again = await q.claim("q", limit=20)
    assert len(again) == 19
    assert {(await q.nack(item)).state for item in again} == {State.FAILED}


async def test_the_stop_event_ends_the_iteration(q: Spy, consume: Consume) -> None:
    stop = asyncio.Event()
    await publish(q, 3)
    seen = 0
    async for lease in consume(stop=stop):
        async with lease:
            seen += 1
            stop.set()
            await turns()
    assert seen == 1
    assert (await q.stats("q")).available == 2


async def test_a_stop_event_that_is_set_already_claims_nothing(q: Spy, consume: Consume) -> None:
    stop = asyncio.Event()
    stop.set()
    await publish(q, 1)
    assert [lease async for lease in consume(stop=stop)] == []
    assert (await q.stats("q")).in_flight == 0


async def test_stop_ends_the_wait_of_everyone(consume: Consume) -> None:
    leases = consume()
    takers = [asyncio.ensure_future(anext(leases, None)) for _ in range(3)]
    await turns()
    leases.stop()
    assert await asyncio.wait_for(asyncio.gather(*takers), 60) == [None, None, None]


async def test_stop_ends_the_wait_after_an_error(
    q: Spy, consume: Consume, caplog: pytest.LogCaptureFixture
) -> None:
    q.faults["claim"] = [Unreachable("down")]
    leases = consume()
    taker = asyncio.ensure_future(anext(leases, None))
    await turns()
    assert "next try" in caplog.text
    leases.stop()
    assert await asyncio.wait_for(taker, 60) is None


async def test_closing_releases_the_buffer_and_does_not_wait_for_holders(
    q: Spy, consume: Consume
) -> None:
    await publish(q, 5)
    async with consume() as leases:
        (held,) = await take(leases, 1)
        await turns()
        assert (await q.stats("q")).in_flight == 5
    assert (await q.stats("q")).in_flight == 1
    assert (await held.ack()).ok
    assert [lease async for lease in leases] == []


async def test_closing_what_was_never_used(consume: Consume) -> None:
    async with consume() as leases:
        pass
    assert [lease async for lease in leases] == []


async def test_after_a_break_what_was_not_begun_goes_back(q: Spy, clock: FakeClock) -> None:
    await publish(q, 5)
    async for lease in Consumption(q, "q", pace=ClockPace(clock)):
        async with lease:
            await turns()
        break
    gc.collect()
    # The rest goes back in a task of its own, which nobody can wait for.
    async with asyncio.timeout(60):
        while (await q.stats("q")).available < 4:
            await turns()
    assert (await q.stats("q")).done == 1


async def test_closing_the_broker_ends_it_and_gives_back(clock: FakeClock) -> None:
    options = penstock.BrokerOptions(engine=penstock.EngineOptions(clock=clock))
    q = await penstock.open("memory://", options=options, keepers=False)
    await q.create_queue("q")
    await publish(q, 3)
    leases = q.consume("q")
    (lease,) = await take(leases, 1)
    await lease.ack()
    waiting = asyncio.ensure_future(_rest(leases))
    await turns()
    await q.close()
    assert [item.message.id for item in await asyncio.wait_for(waiting, 60)] == [1, 2]


async def _rest(leases: Consumption) -> list[Lease]:
    return [lease async for lease in leases]


async def test_consumers_without_a_name_have_one_each(q: Spy) -> None:
    names = {q.consume("q").consumer for _ in range(10)}
    assert len(names) == 10
    await publish(q, 1)
    leases = q.consume("q", consumer="me")
    (lease,) = await take(leases, 1)
    (held,) = (await q.message(lease.message.id)).deliveries
    assert held.consumer == "me"
