"""consume_batches: batches that are settled together, and what becomes of their leases."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import State
from penstock.consume import BatchConsumption, LeaseBatch
from penstock.errors import BadInput, CommitFailed, Forbidden, Unreachable
from penstock.model.delivery import Ack, Nack, Reject, Release, Verdict
from penstock.model.limits import CONSUMER_LEASE_MS, MAX_PAYLOAD_BYTES
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.consume.conftest import ClockPace, pass_time, publish, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from penstock.model.delivery import Settlement, SettleReply
    from tests.unit.consume.conftest import Spy

LEASE_MS = 30_000


@pytest.fixture
async def batches(q: Spy, clock: FakeClock) -> AsyncIterator[Callable[..., BatchConsumption]]:
    made: list[BatchConsumption] = []

    def make(queue: object = "q", **options: object) -> BatchConsumption:
        made.append(BatchConsumption(q, queue, pace=ClockPace(clock), **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for consumption in made:
        await consumption.aclose()


async def take(batches: BatchConsumption) -> LeaseBatch:
    return await asyncio.wait_for(anext(batches), 60)


async def states(q: Spy, batch: LeaseBatch) -> list[State]:
    found = [await q.message(delivery.message.id) for delivery in batch.deliveries]
    return [message.deliveries[0].state for message in found]


@law("C4")
async def test_everything_comes_once_in_order_and_is_acked(q: Spy, batches) -> None:
    ids = await publish(q, 1_000)
    seen: list[int] = []
    async with batches(size=100) as consumption:
        async for batch in consumption:
            async with batch:
                seen += [lease.message.id for lease in batch]
            assert len(batch) <= 100
            if len(seen) == len(ids):
                break
    assert seen == ids
    # Closing has waited for the acks.
    assert (await q.stats("q")).done == 1_000
    assert q.most_in_flight <= 200


async def test_the_next_batch_comes_while_the_last_one_is_settled(q: Spy, batches) -> None:
    await publish(q, 40)
    consumption = batches(size=10)
    q.gate = asyncio.Event()
    async with await take(consumption) as first:
        pass
    async with await take(consumption) as second:
        pass
    await turns()
    assert await states(q, first) == [State.DONE] * 10
    assert await states(q, second) == [State.IN_FLIGHT] * 10  # It goes into the next call.
    q.gate.set()
    third = await take(consumption)
    assert [delivery.payload for delivery in third.deliveries] == [b"%d" % n for n in range(20, 30)]
    await turns()
    assert await states(q, second) == [State.DONE] * 10
    assert (q.combined, q.settles) == (2, 0)


async def test_a_batch_is_what_there_is(q: Spy, batches) -> None:
    await publish(q, 3)
    consumption = batches(size=10)
    assert len(await take(consumption)) == 3
    waiting = asyncio.ensure_future(anext(consumption))
    await turns()
    await publish(q, 1)
    assert len(await asyncio.wait_for(waiting, 60)) == 1


async def test_results_are_those_of_the_leases(q: Spy, batches) -> None:
    ids = await publish(q, 2)
    consumption = batches()
    async with await take(consumption) as batch:
        batch[1].result = b"paid"
    await turns()
    results = [await q.result("q", number) for number in ids]
    assert [item and item.result for item in results] == [None, b"paid"]


async def test_what_the_body_settled_exit_leaves_alone(q: Spy, batches) -> None:
    await publish(q, 4)
    async with await take(batches()) as batch:
        await batch[0].reject("not for us")
        async with batch[1]:
            raise LookupError("only this one")
        assert batch.held == 2
    await turns()
    assert await states(q, batch) == [State.FAILED, State.DELAYED, State.DONE, State.DONE]


@pytest.mark.parametrize(
    "error, state, kind",
    [
        (ValueError("broken"), State.DELAYED, Nack),
        (penstock.Retry("busy", delay_ms=7), State.DELAYED, Nack),
        (penstock.Reject("stolen"), State.FAILED, Reject),
    ],
)
async def test_an_error_settles_all_of_them_and_ends_there(
    q: Spy, batches, error: Exception, state: State, kind: type, caplog
) -> None:
    caplog.set_level("INFO")
    await publish(q, 3)
    async with await take(batches()) as batch:
        await batch[0].ack()
        raise error
    await turns()
    assert await states(q, batch) == [State.DONE, state, state]
    assert q.settled[kind] == 2
    assert str(error) in caplog.text


async def test_a_cancellation_releases_them_and_propagates(q: Spy, batches) -> None:
    await publish(q, 5)
    consumption = batches()
    batch = await take(consumption)
    consumption.stop()

    async def work() -> None:
        async with batch:
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await states(q, batch) == [State.AVAILABLE] * 5
    assert q.settled[Release] == 5


@law("S1")
async def test_a_lost_claim_is_not_settled_and_the_others_are(q: Spy, batches, caplog) -> None:
    await publish(q, 3)
    consumption = batches()
    batch = await take(consumption)
    consumption.stop()
    async with batch:
        await q.release(batch[1].delivery)
    await turns()
    assert "lost" in caplog.text
    assert [lease.lost for lease in batch] == [False, True, False]
    assert await states(q, batch) == [State.DONE, State.AVAILABLE, State.DONE]


async def test_a_lost_claim_does_not_end_what_other_tasks_settle(q: Spy, batches) -> None:
    await publish(q, 4)
    consumption = batches(size=2)
    lossy, other = await take(consumption), await take(consumption)
    settle = q.settle
    sizes: list[int] = []

    async def counted(queue: str, settlements: Sequence[Settlement]) -> SettleReply:
        sizes.append(len(settlements))
        return await settle(queue, settlements)

    q.settle = counted  # type: ignore[method-assign, assignment]
    consumption.stop()
    async with lossy:
        await settle("q", [Release(lossy[0].receipt)])
    answers = await asyncio.wait_for(other.ack(), 60)
    await turns()
    assert len(answers) == 2
    assert lossy[1].settled
    assert 0 not in sizes
    assert await states(q, other) == [State.DONE] * 2


async def test_the_body_is_cancelled_when_all_claims_are_lost(
    q: Spy, batches, clock: FakeClock, caplog
) -> None:
    await publish(q, 2)
    consumption = batches()
    batch = await take(consumption)
    consumption.stop()

    async def work() -> str:
        async with batch:
            await asyncio.Event().wait()
        return "after"

    task = asyncio.create_task(work())
    await turns()
    await q.release(batch[0].delivery)
    await pass_time(clock, LEASE_MS)
    assert not task.done()
    await q.release(batch[1].delivery)
    await pass_time(clock, LEASE_MS)
    assert await asyncio.wait_for(task, 60) == "after"
    assert "its work was cancelled" in caplog.text


async def test_explicit_calls_return_the_outcomes(q: Spy, batches) -> None:
    await publish(q, 3)
    consumption = batches()
    batch = await take(consumption)
    consumption.stop()
    await q.release(batch[2].delivery)
    async with batch:
        outcomes = await batch.ack()
        assert [item.verdict for item in outcomes] == [Verdict.OK, Verdict.OK, Verdict.STALE]
        assert await batch.ack() == ()
    assert q.settled[Ack] == 3


@pytest.mark.parametrize(
    "verb, state", [("nack", State.DELAYED), ("reject", State.FAILED), ("release", State.DELAYED)]
)
async def test_a_batch_is_nacked_rejected_or_released(q: Spy, batches, verb, state) -> None:
    await publish(q, 3)
    batch = await take(batches())
    options = {"delay_ms": 1_000} if state is State.DELAYED else {}
    await getattr(batch, verb)(**options)
    assert await states(q, batch) == [state] * 3


async def test_a_failed_call_leaves_them_held(q: Spy, batches) -> None:
    await publish(q, 3)
    batch = await take(batches())
    q.faults["settle"] = [CommitFailed("disk full")]
    with pytest.raises(CommitFailed):
        await batch.ack()
    assert batch.held == 3
    assert all(item.ok for item in await batch.ack())


async def test_a_result_that_is_refused_nacks_its_delivery(q: Spy, batches, caplog) -> None:
    await publish(q, 4)
    async with await take(batches()) as batch:
        batch[1].result = b"x" * (MAX_PAYLOAD_BYTES + 1)
        batch[2].result = object()
    await turns(200)
    assert await states(q, batch) == [State.DONE, State.DELAYED, State.DELAYED, State.DONE]
    assert "its result was refused" in caplog.text


async def test_settlements_of_a_batch_wait_for_a_server_that_is_away(
    q: Spy, batches, clock: FakeClock
) -> None:
    await publish(q, 3)
    q.faults["settle"] = [Unreachable("down") for _ in range(20)]
    async with await take(batches()) as batch:
        pass
    await pass_time(clock, 20 * 10_000)
    assert await states(q, batch) == [State.DONE] * 3
    assert {delivery.attempts for delivery in batch.deliveries} == {1}


async def test_an_error_that_cannot_pass_is_raised_by_the_next_batch(
    q: Spy, batches, caplog
) -> None:
    await publish(q, 3)
    consumption = batches()
    q.faults["settle"] = [Forbidden("no")]
    async with await take(consumption):
        pass
    await turns()
    with pytest.raises(Forbidden):
        await take(consumption)
    assert "3 messages of 'q' were not settled" in caplog.text


async def test_stop_waits_for_the_settlements(q: Spy, batches) -> None:
    await publish(q, 10)
    consumption = batches(size=5)
    q.gate = asyncio.Event()
    async with await take(consumption):
        consumption.stop()
    closing = asyncio.create_task(consumption.aclose())
    await turns()
    assert not closing.done()
    q.gate.set()
    await asyncio.wait_for(closing, 60)
    stats = await q.stats("q")
    assert (stats.done, stats.in_flight) == (5, 0)


@law("C5")
async def test_a_forgotten_batch_lapses(q: Spy, batches, clock: FakeClock) -> None:
    await publish(q, 2)
    consumption = batches(max_in_flight=100)
    batch = await take(consumption)
    kept = batch[0]
    del batch
    gc.collect()
    await pass_time(clock, 2 * LEASE_MS)
    # A lease of it is still there, so the batch is not forgotten.
    assert kept.held
    del kept
    gc.collect()
    await pass_time(clock, 2 * LEASE_MS)
    assert {item.attempts for item in (await take(consumption)).deliveries} == {2}


async def test_the_leases_of_a_batch_are_extended(q: Spy, batches, clock: FakeClock) -> None:
    await publish(q, 3)
    async with await take(batches()) as batch:
        await pass_time(clock, 10 * LEASE_MS)
        assert await q.claim("q", consumer="thief") == []
    await turns()
    assert await states(q, batch) == [State.DONE] * 3


async def test_a_batch_of_several_queues_is_settled_in_each(q: Spy, batches) -> None:
    await q.delete_queue("q")
    for name in "ab":
        await q.create_queue(name, f"topic = '{name}'")
        await publish(q, 3, name)
    async with await take(batches(["a", "b"], size=6)) as batch:
        assert [lease.queue for lease in batch] == ["a"] * 3 + ["b"] * 3
    await turns()
    assert [(await q.stats(name)).done for name in "ab"] == [3, 3]
    assert q.combined == 0


@law("O1")
async def test_an_ordered_queue_is_joined_and_kept_in_order(
    q: Spy, batches, clock: FakeClock
) -> None:
    await q.create_queue("ordered", ordering="partition")
    for number in range(5):
        for partition in "abc":
            await q.publish("t", b"%d" % number, partition_key=partition)
    seen: dict[str, list[bytes]] = {}
    consumption = batches("ordered", consumer="x")
    async with asyncio.timeout(60):
        async for batch in consumption:
            async with batch:
                for lease in batch:
                    seen.setdefault(lease.message.partition_key or "", []).append(lease.payload)
            await pass_time(clock, CONSUMER_LEASE_MS)
            if sum(map(len, seen.values())) == 15:
                break
    assert seen == {partition: [b"0", b"1", b"2", b"3", b"4"] for partition in "abc"}
    await consumption.aclose()
    # It has left: another consumer gets its partitions at once.
    await q.publish("t", b"5", partition_key="a")
    await q.join("ordered", "y")
    assert [item.payload for item in await q.claim("ordered", consumer="y")] == [b"5"]


@law("E1")
@pytest.mark.parametrize(
    "options, field",
    [
        ({"size": 0}, "size"),
        ({"size": 1_001}, "size"),
        ({"size": 10, "max_in_flight": 9}, "max_in_flight"),
        ({"max_in_flight": 10_001}, "max_in_flight"),
    ],
)
async def test_bad_options_are_refused_at_once(q: Spy, options: dict, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        q.consume_batches("q", **options)
    assert caught.value.field == field
