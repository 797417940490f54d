"""A lease: settled once, by hand or by ``async with``, and what happens when it is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec
import pytest

import penstock
from penstock import Outgoing, State
from penstock.consume import Lease
from penstock.errors import BadInput, Busy, CommitFailed, Conflict, StaleReceipt
from penstock.model.limits import MAX_ERROR_BYTES
from penstock.model.message import NewMessage
from penstock.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.unit.consume.conftest import Consume, Spy

from penstock.testing.laws import law
from tests.unit.consume.conftest import pass_time, turns


class Order(msgspec.Struct):
    id: int


class Named(msgspec.Struct):
    id: str


@pytest.fixture
async def lease(q: Spy, consume: Consume) -> Lease:
    """One message, held, and nobody who claims it again."""
    await q.publish("t", {"id": 7}, headers={"country": "DE"})
    leases = consume(max_in_flight=1)
    lease = await anext(leases)
    leases.stop()
    return lease


async def state_of(q: Spy, lease: Lease) -> State:
    (delivery,) = (await q.message(lease.message.id)).deliveries
    return delivery.state


async def test_it_shows_what_was_published(lease: Lease) -> None:
    assert lease.payload == b'{"id":7}'
    assert lease.headers == {"country": "DE"}
    assert (lease.queue, lease.attempts, lease.message.topic) == ("q", 1, "t")
    assert lease.receipt == lease.delivery.receipt
    assert lease.json() == {"id": 7}
    assert lease.json(Order) == Order(7)
    assert "HELD" in repr(lease)


@law("E1")
async def test_json_that_does_not_fit_says_where(lease: Lease) -> None:
    with pytest.raises(BadInput, match=r"\$\.id") as caught:
        lease.json(Named)
    assert caught.value.field == "payload"


async def test_a_clean_exit_acks_with_the_result(q: Spy, lease: Lease) -> None:
    assert await state_of(q, lease) is State.IN_FLIGHT
    async with lease as entered:
        entered.result = b"paid"
    assert lease.settled
    result = await q.result("q", lease.message.id)
    assert result is not None
    assert result.result == b"paid"


async def test_an_exception_nacks_is_logged_and_ends_there(
    q: Spy, lease: Lease, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with lease:
        raise LookupError("no such card")
    (record,) = [item for item in caplog.records if item.name == "penstock.consume"]
    assert record.levelno == logging.WARNING
    assert "no such card" in caplog.text
    assert "Traceback" in caplog.text
    assert await state_of(q, lease) is State.DELAYED
    clock.advance(1_000)
    (again,) = await q.claim("q")
    assert again.attempts == 2
    (shown,) = (await q.message(lease.message.id)).deliveries
    assert shown.error == "LookupError: no such card"


async def test_an_error_is_cut(q: Spy, lease: Lease) -> None:
    async with lease:
        raise ValueError("ü" * MAX_ERROR_BYTES)
    (shown,) = (await q.message(lease.message.id)).deliveries
    assert shown.error is not None
    assert shown.error.startswith("ValueError: ü")
    assert len(shown.error.encode()) <= MAX_ERROR_BYTES


async def test_a_cancellation_releases_and_goes_on_up(q: Spy, lease: Lease) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with lease:
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await state_of(q, lease) is State.AVAILABLE
    # C2: a released grant does not count against max_attempts.
    await q.update_queue("q", max_attempts=1)
    (again,) = await q.claim("q")
    assert (await q.nack(again)).state is State.FAILED


async def test_what_the_body_settled_exit_leaves_alone(q: Spy, lease: Lease) -> None:
    async with lease:
        await lease.reject("not for us")
    assert await state_of(q, lease) is State.FAILED


async def test_an_exception_after_settling_is_logged_and_changes_nothing(
    q: Spy, lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    async with lease:
        await lease.ack()
        raise ValueError("too late")
    assert "too late" in caplog.text
    assert await state_of(q, lease) is State.DONE


@law("E1")
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
async def test_settling_twice_is_refused(q: Spy, lease: Lease, verb: str) -> None:
    await lease.ack()
    with pytest.raises(Conflict, match="settled already") as caught:
        await getattr(lease, verb)()
    assert type(caught.value) is Conflict
    assert caught.value.field == "receipt"
    with pytest.raises(Conflict, match="settled already"):
        async with lease:
            pass
    assert await state_of(q, lease) is State.DONE


@law("E1")
async def test_settling_twice_at_once_is_refused(q: Spy, lease: Lease) -> None:
    outcomes = await asyncio.gather(lease.ack(), lease.nack(), return_exceptions=True)
    assert isinstance(outcomes[1], Conflict)
    assert await state_of(q, lease) is State.DONE


async def test_nack_and_release_by_hand(q: Spy, consume: Consume, clock: FakeClock) -> None:
    await q.publish("t", b"x")
    leases = consume()
    first = await anext(leases)
    outcome = await first.nack("later", delay_ms=5_000)
    assert outcome.until == clock.now() + 5_000
    await pass_time(clock, 5_000)
    second = await anext(leases)
    assert (second.message.id, second.attempts) == (first.message.id, 2)
    await second.release()
    third = await anext(leases)
    assert third.attempts == 3


@law("S1")
async def test_a_lost_claim_cannot_be_settled(q: Spy, lease: Lease) -> None:
    await q.release(lease.delivery)
    (other,) = await q.claim("q")
    for call in (lease.ack, lease.nack, lease.release):
        with pytest.raises(StaleReceipt):
            await call()
        assert lease.lost
    with pytest.raises(StaleReceipt):
        await lease.extend(1_000)
    with pytest.raises(StaleReceipt):
        async with lease:
            pytest.fail("there is nothing to work on")
    assert (await q.ack(other)).ok


@law("S1")
async def test_losing_the_claim_before_the_ack_does_not_stop_the_loop(
    q: Spy, lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    async with lease:
        await q.release(lease.delivery)
    assert lease.lost
    assert not lease.settled
    assert "lost" in caplog.text
    assert await state_of(q, lease) is State.AVAILABLE


async def test_losing_the_claim_cuts_the_body_off(
    q: Spy, lease: Lease, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def work() -> int:
        async with lease:
            seen.append("begun")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cut off")
                raise
        seen.append("after")
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        return task.cancelling()

    task = asyncio.create_task(work())
    await turns()
    await q.release(lease.delivery)
    await pass_time(clock, 30_000)
    assert await task == 0
    assert seen == ["begun", "cut off", "after"]
    assert "its work was cancelled" in caplog.text
    assert await state_of(q, lease) is State.AVAILABLE


async def test_a_cancellation_from_outside_is_not_swallowed_with_a_lost_claim(
    q: Spy, lease: Lease, clock: FakeClock
) -> None:
    seen: list[str] = []

    async def work() -> None:
        async with lease:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cleaning up")
                await asyncio.Event().wait()
        seen.append("after")

    task = asyncio.create_task(work())
    await turns()
    await q.release(lease.delivery)
    await pass_time(clock, 30_000)
    assert seen == ["cleaning up"]
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert seen == ["cleaning up"]


async def test_an_extension_that_crosses_the_ack_loses_nothing(
    q: Spy, lease: Lease, clock: FakeClock
) -> None:
    q.gate = asyncio.Event()

    async def work() -> str:
        async with lease:
            pass
        return "after"

    task = asyncio.create_task(work())
    # The ack has taken effect, its answer is under way, and the receipt is found to be stale.
    await pass_time(clock, 15_000)
    assert q.extensions
    q.gate.set()
    assert await task == "after"
    assert lease.settled
    assert not lease.lost


async def test_a_settlement_that_is_cut_off_leaves_the_claim_to_itself(
    q: Spy, lease: Lease, clock: FakeClock
) -> None:
    q.gate = asyncio.Event()
    task = asyncio.create_task(lease.ack())
    await turns()
    task.cancel()
    await asyncio.wait((task,))
    with pytest.raises(Conflict):
        await lease.nack()
    assert await state_of(q, lease) is State.DONE
    q.gate.set()  # The call is shared: it goes on, and closing waits for it.


async def test_a_settlement_that_failed_can_be_tried_again(q: Spy, lease: Lease) -> None:
    q.faults["settle"] = [Busy("not now")]
    with pytest.raises(Busy):
        await lease.ack(b"1")
    assert (await lease.ack(b"2")).state is State.DONE


async def test_exit_tells_that_it_could_not_settle(
    q: Spy, lease: Lease, clock: FakeClock, consume: Consume
) -> None:
    q.faults["settle"] = [CommitFailed("disk full")]
    with pytest.raises(CommitFailed):
        async with lease:
            pass
    # Nobody holds it, so nobody extends it: it comes back when its lease is over.
    await pass_time(clock, 30_000)
    again = await asyncio.wait_for(anext(consume()), 60)
    assert again.message.id == lease.message.id


async def test_a_result_that_is_refused_is_an_error_of_the_body(q: Spy, lease: Lease) -> None:
    async with lease:
        lease.result = b"x" * (1024 * 1024 + 1)
    (shown,) = (await q.message(lease.message.id)).deliveries
    assert shown.state is State.DELAYED
    assert shown.error is not None
    assert shown.error.startswith("TooLarge: A result of 1048577 bytes")


async def test_an_ack_publishes_in_its_commit(q: Spy, lease: Lease) -> None:
    end = await q.log_end()
    await lease.ack(b"r", publish=[Outgoing("receipts", [NewMessage(b"paid")])])
    assert await q.log_end() == end + 1
    assert await state_of(q, lease) is State.DONE


@law("S1")
async def test_a_lost_claim_publishes_nothing(q: Spy, lease: Lease) -> None:
    await q.release(lease.delivery)
    end = await q.log_end()
    with pytest.raises(StaleReceipt):
        await lease.ack(publish=[Outgoing("receipts", [NewMessage(b"paid")])])
    assert await q.log_end() == end


@law("C5")
async def test_a_forgotten_lease_lapses(
    q: Spy, consume: Consume, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await q.publish("t", b"x")
    leases = consume(max_in_flight=1)
    forgotten = await anext(leases)
    number = forgotten.message.id
    del forgotten
    await pass_time(clock, 29_000)
    assert (await q.stats("q")).in_flight == 1
    await pass_time(clock, 2_000)
    again = await asyncio.wait_for(anext(leases), 60)
    assert (again.message.id, again.attempts) == (number, 2)
    assert "not settled" in caplog.text


async def test_let_lapse_gives_it_up(q: Spy, lease: Lease, clock: FakeClock) -> None:
    async with lease:
        lease.let_lapse()
    assert await state_of(q, lease) is State.IN_FLIGHT
    with pytest.raises(Conflict, match="given up"):
        await lease.ack()
    await pass_time(clock, 30_000)
    (again,) = await q.claim("q")
    assert again.attempts == 2


async def test_a_coroutine_that_is_closed_in_the_body_gives_up(q: Spy, lease: Lease) -> None:
    async def work() -> None:
        async with lease:
            await asyncio.Event().wait()

    coroutine = work()
    coroutine.send(None)
    coroutine.close()
    assert await state_of(q, lease) is State.IN_FLIGHT
    assert not lease.settled


@pytest.mark.parametrize(
    "error, state",
    [
        (penstock.Reject("stolen"), State.FAILED),
        (penstock.Retry("busy", delay_ms=7), State.DELAYED),
    ],
)
async def test_reject_and_retry_in_the_body_settle_it(
    q: Spy, lease: Lease, clock: FakeClock, error: Exception, state: State
) -> None:
    async with lease:
        raise error
    (delivery,) = (await q.message(lease.message.id)).deliveries
    assert (delivery.state, delivery.error) == (state, str(error))
    if state is State.DELAYED:
        assert delivery.at == clock.now() + 7
