"""Claim: bounds, leases, and the throughput limit that is charged for what was handed out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Broker, NewMessage, Ordering, PenstockError, Start
from penstock.broker.claim import Throttle
from penstock.errors import BadInput, BadName, Conflict, UnknownQueue
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

#: Twelve hours.
LONGEST_LEASE_MS: Final = 43_200_000
START: Final = 1_700_000_000_000


async def fill(q: Broker, topic: str, count: int) -> None:
    await q.publish_batch(topic, [NewMessage(b"%d" % n) for n in range(count)])


async def taken(q: Broker, queue: str, limit: int = 1000) -> int:
    return len(await q.claim(queue, limit=limit))


# -- bounds ----------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize("limit", [0, -1, 1001, True, 1.0, "1", None])
async def test_a_limit_out_of_bounds(q: Broker, refuses: Refuses, limit: Any) -> None:
    await refuses(q.claim("stock", limit=limit), BadInput, "limit", 1000)


@law("E1")
@pytest.mark.parametrize("lease_ms", [0, -1, LONGEST_LEASE_MS + 1, True, 1.0, "1"])
async def test_a_lease_out_of_bounds(q: Broker, refuses: Refuses, lease_ms: Any) -> None:
    await refuses(q.claim("stock", lease_ms=lease_ms), BadInput, "lease_ms", LONGEST_LEASE_MS)


@law("E1")
@pytest.mark.parametrize("consumer", ["", None, 5, "a b", "é", "c" * 129])
async def test_a_consumer_that_is_not_a_name(q: Broker, refuses: Refuses, consumer: Any) -> None:
    await q.create_queue("ordered", "FALSE", ordering=Ordering.PARTITION)
    await refuses(q.claim("stock", consumer=consumer), BadName, "consumer", 128)
    await refuses(q.join("ordered", consumer), BadName, "consumer", 128)
    await refuses(q.leave("ordered", consumer), BadName, "consumer", 128)


@law("E1")
@pytest.mark.parametrize("queue", ["", None, 5, "a b", ".dlq", "q" * 129, "q" * 129 + ".dlq"])
async def test_a_queue_that_is_not_a_name(q: Broker, refuses: Refuses, queue: Any) -> None:
    for call in (q.claim(queue), q.join(queue, "me"), q.leave(queue, "me")):
        await refuses(call, BadName, "queue", 128)


@law("E1")
@pytest.mark.parametrize("queue", ["nowhere", "nowhere.dlq"])
async def test_a_queue_that_is_not_there(q: Broker, refuses: Refuses, queue: str) -> None:
    for call in (q.claim(queue), q.join(queue, "me"), q.leave(queue, "me")):
        await refuses(call, UnknownQueue, "queue")


@law("E1")
async def test_only_ordered_queues_are_joined(q: Broker, refuses: Refuses) -> None:
    await refuses(q.join("stock", "me"), Conflict, "queue")
    await q.leave("stock", "me")  # There is nothing to give back, on every engine.


#: More digits than Python writes out.
HUGE: Final = 10**5000
HUGE_CALLS: Final[dict[str, Callable[[Broker], Awaitable[object]]]] = {
    "claim": lambda q: q.claim("stock", limit=HUGE),
    "lease": lambda q: q.claim("stock", lease_ms=HUGE),
    "wait": lambda q: q.claim("stock", wait_ms=HUGE),
    "result": lambda q: q.result("stock", 0, wait_ms=HUGE),
    "count": lambda q: q.sweep(HUGE),
    "offset": lambda q: q.read_log(HUGE),
    "id": lambda q: q.message(HUGE),
    "time": lambda q: q.publish("stock", b"", delay_ms=HUGE),
    "priority": lambda q: q.publish("stock", b"", priority=HUGE),
    "policy": lambda q: q.update_queue("stock", max_attempts=HUGE),
    "start": lambda q: q.create_queue("orders", start=Start("offset", HUGE)),
}


@law("E1")
@pytest.mark.parametrize("call", HUGE_CALLS.values(), ids=HUGE_CALLS)
async def test_a_number_that_cannot_be_written_out(
    q: Broker, call: Callable[[Broker], Awaitable[object]]
) -> None:
    await q.publish("stock", b"")
    with pytest.raises(PenstockError) as caught:
        await call(q)
    assert caught.value.status == 400
    assert caught.value.field is not None


async def test_claims_at_the_bounds(q: Broker, clock: FakeClock) -> None:
    await fill(q, "orders", 1001)
    many = await q.claim("orders", limit=1000, lease_ms=LONGEST_LEASE_MS, consumer="c" * 128)
    assert len(many) == 1000
    assert {item.lease_deadline for item in many} == {clock.now() + LONGEST_LEASE_MS}
    assert (await q.stats("orders")).in_flight_by_consumer == {"c" * 128: 1000}


async def test_a_claim_that_names_nothing(q: Broker, clock: FakeClock) -> None:
    await fill(q, "orders", 2)
    (delivery,) = await q.claim("orders")
    assert delivery.payload == b"0"
    assert delivery.lease_deadline == clock.now() + 30_000
    assert (await q.stats("orders")).in_flight_by_consumer == {"anonymous": 1}


@pytest.mark.parametrize(
    "asked, given_ms",
    [(1, 1_000), (999, 1_000), (1_000, 1_000), (3_000, 3_000), (5_000, 5_000), (5_001, 5_000)],
)
async def test_the_policy_clamps_the_lease(
    q: Broker, clock: FakeClock, asked: int, given_ms: int
) -> None:
    await q.create_queue("orders", min_lease_ms=1_000, max_lease_ms=5_000)
    await fill(q, "orders", 1)
    (delivery,) = await q.claim("orders", lease_ms=asked)
    assert delivery.lease_deadline == clock.now() + given_ms


@pytest.mark.parametrize("own_ms, given_ms", [(1, 1_000), (2_000, 2_000), (9_000, 5_000)])
async def test_the_policy_clamps_its_own_timeout(
    q: Broker, clock: FakeClock, own_ms: int, given_ms: int
) -> None:
    await q.create_queue("orders", min_lease_ms=1_000, max_lease_ms=5_000, lease_ms=own_ms)
    await fill(q, "orders", 1)
    (delivery,) = await q.claim("orders")
    assert delivery.lease_deadline == clock.now() + given_ms


# -- the token bucket ------------------------------------------------------------------


def spend(throttle: Throttle, limit: int, now: int) -> int:
    """Grant as many deliveries as the limit allows; returns how many."""
    taken = throttle.take(limit, now)
    throttle.charge(taken, taken, now)
    return taken


def test_a_bucket_begins_full() -> None:
    throttle = Throttle(5, START)
    assert throttle.take(3, START) == 3
    assert throttle.take(9, START) == 2
    assert throttle.take(9, START) == 0


def test_what_was_not_handed_out_costs_nothing() -> None:
    throttle = Throttle(5, START)
    for _ in range(10):
        assert throttle.take(9, START) == 5
        throttle.charge(5, 0, START)
    assert throttle.take(4, START) == 4
    throttle.charge(4, 1, START)
    assert throttle.take(9, START) == 4
    throttle.charge(4, 4, START)
    assert throttle.take(9, START) == 0


def test_a_slow_claim_does_not_let_the_bucket_refill_behind_it() -> None:
    """The grants after it, and its own, stay within one bucket and the rate."""
    throttle = Throttle(2, START)
    assert throttle.take(2, START) == 2
    throttle.charge(2, 1, START + 400)
    assert throttle.take(9, START + 499) == 1
    assert throttle.take(9, START + 900) == 1


def test_overlapping_claims_share_the_bucket() -> None:
    throttle = Throttle(4, START)
    assert [throttle.take(2, START), throttle.take(9, START)] == [2, 2]
    throttle.charge(2, 2, START + 300)
    throttle.charge(2, 1, START + 300)
    assert throttle.take(9, START + 300) == 1


def test_a_bucket_fills_with_time_and_never_over() -> None:
    seen = []
    for ms in (0, 199, 200, 399, 400, 1000, 60_000):
        throttle = Throttle(5, START)
        spend(throttle, 5, START)
        seen.append(throttle.take(9, START + ms))
    assert seen == [0, 0, 1, 1, 2, 5, 5]


def test_giving_back_never_fills_over() -> None:
    throttle = Throttle(5, START)
    assert throttle.take(5, START) == 5
    assert throttle.take(5, START + 1000) == 0
    throttle.charge(5, 0, START + 1000)
    assert throttle.take(99, START + 1000) == 5


def test_fractions_of_a_token_add_up() -> None:
    """Three a second is no whole number of milliseconds a token."""
    throttle = Throttle(3, START)
    spend(throttle, 3, START)
    assert sum(spend(throttle, 1, START + ms) for ms in range(1, 10_001)) == 30


def test_a_clock_that_goes_back_fills_nothing() -> None:
    throttle = Throttle(5, START)
    spend(throttle, 5, START)
    assert throttle.take(9, START - 10_000) == 0


def test_without_a_rate_everything_is_allowed() -> None:
    throttle = Throttle(None, START)
    assert throttle.take(10**9, START) == 10**9
    assert throttle.take(1000, START) == 1000
    throttle.charge(1000, 0, START)
    assert throttle.take(1000, START) == 1000


@law("C5")
@given(
    rate=st.integers(1, 5000),
    steps=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 6000)), max_size=5),
)
def test_the_next_token_is_there_when_it_was_said_and_not_before(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    throttle, now = Throttle(rate, START), START
    for ms, limit in steps:
        now += ms
        spend(throttle, limit, now)
    at = throttle.next_at(now)
    if at is None:
        assert throttle.take(1, now) == 1
        return
    assert now < at <= now + 1000
    assert throttle.next_at(at - 1) == at
    assert throttle.take(1, at - 1) == 0
    assert throttle.take(1, at) == 1


def test_without_a_rate_no_token_is_waited_for() -> None:
    assert Throttle(None, START).next_at(START) is None


def test_a_rate_is_trusted_for_a_second() -> None:
    throttle = Throttle(5, START)
    assert [throttle.is_fresh(START + ms) for ms in (-1, 0, 999, 1000)] == [
        False,
        True,
        True,
        False,
    ]
    throttle.remember(5, START + 1000)
    assert throttle.is_fresh(START + 1999)
    throttle.doubt()
    assert not throttle.is_fresh(START + 1000)
    assert not throttle.is_fresh(0)


def test_the_same_rate_read_again_leaves_the_bucket() -> None:
    throttle = Throttle(5, START)
    spend(throttle, 5, START)
    throttle.remember(5, START)
    assert throttle.take(9, START) == 0


@pytest.mark.parametrize("rate, allowed", [(2, 2), (50, 50), (None, 99)])
def test_another_rate_begins_with_a_full_bucket(rate: int | None, allowed: int) -> None:
    throttle = Throttle(5, START)
    spend(throttle, 5, START)
    throttle.remember(rate, START)
    assert throttle.take(99, START) == allowed


@pytest.mark.parametrize("before", [50, None])
def test_what_was_taken_at_another_rate_does_not_fill_over(before: int | None) -> None:
    """The rate was changed while a claim was on its way."""
    throttle = Throttle(before, START)
    taken = throttle.take(40, START)
    throttle.remember(3, START)
    throttle.charge(taken, 0, START)
    assert throttle.take(99, START) == 3


@given(
    rate=st.integers(1, 50),
    steps=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(1, 100), st.floats(0, 1), st.integers(0, 1500)),
        max_size=20,
    ),
)
def test_never_more_than_a_burst_and_the_rate_in_any_period(
    rate: int, steps: list[tuple[int, int, float, int]]
) -> None:
    throttle = Throttle(rate, START)
    now = START
    granted: list[tuple[int, int]] = []
    for wait_ms, limit, part, claim_ms in steps:
        now += wait_ms
        allowed = throttle.take(limit, now)
        assert 0 <= allowed <= min(limit, rate)
        now += claim_ms
        granted.append((now, int(allowed * part)))
        throttle.charge(allowed, granted[-1][1], now)
        for first, (began, _) in enumerate(granted):
            count = sum(number for _, number in granted[first:])
            assert count * 1000 <= rate * 1000 + rate * (now - began)


# -- the throughput limit --------------------------------------------------------------


async def test_a_limited_queue_gives_fewer_and_no_error(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", throughput_limit=5)
    await fill(q, "orders", 50)
    counts = []
    for wait_ms in (0, 0, 199, 1, 400, 60_000):
        clock.advance(wait_ms)
        counts.append(await taken(q, "orders"))
    assert counts == [5, 0, 0, 1, 2, 5]


async def test_polling_an_empty_queue_burns_nothing(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=5)
    for _ in range(20):
        assert await taken(q, "orders") == 0
    await fill(q, "orders", 9)
    assert await taken(q, "orders") == 5


async def test_charged_for_what_was_handed_out(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=5)
    await fill(q, "orders", 2)
    assert await taken(q, "orders") == 2
    await fill(q, "orders", 9)
    assert await taken(q, "orders", 2) == 2
    assert await taken(q, "orders") == 1


async def test_a_paused_queue_burns_nothing(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=5)
    await fill(q, "orders", 9)
    await q.pause("orders")
    assert await taken(q, "orders") == 0
    await q.resume("orders")
    assert await taken(q, "orders") == 5


@pytest.mark.parametrize("limit, count", [(7, 7), (1, 1), (None, 15)])
async def test_a_changed_limit_holds_at_the_next_claim(
    q: Broker, limit: int | None, count: int
) -> None:
    await q.create_queue("orders", throughput_limit=5)
    await fill(q, "orders", 20)
    assert await taken(q, "orders") == 5
    await q.update_queue("orders", throughput_limit=limit)
    assert await taken(q, "orders") == count


async def test_a_limit_on_a_queue_that_had_none(q: Broker) -> None:
    await fill(q, "orders", 20)
    assert await taken(q, "orders", 3) == 3
    await q.update_queue("orders", throughput_limit=2)
    assert await taken(q, "orders") == 2


async def test_a_limit_that_another_process_changed_holds_within_a_second(
    q: Broker, clock: FakeClock
) -> None:
    info = await q.create_queue("orders", throughput_limit=5)
    await fill(q, "orders", 20)
    assert await taken(q, "orders") == 5
    await q.engine.put_queue("default", "orders", type(info.policy)(throughput_limit=None), Start())
    assert await taken(q, "orders") == 0
    clock.advance(1000)
    assert await taken(q, "orders") == 15


@law("Q1")
async def test_every_queue_has_its_own_bucket(q: Broker) -> None:
    await q.create_queue("one", throughput_limit=2)
    await q.create_queue("two", throughput_limit=3)
    await fill(q, "orders", 9)
    assert await taken(q, "one") == 2
    assert await taken(q, "two") == 3
    assert await taken(q, "one") == 0


@law("T1")
async def test_every_tenant_has_its_own_bucket(q: Broker) -> None:
    other = q.for_tenant("other")
    for broker in (q, other):
        await broker.create_queue("orders", throughput_limit=2)
        await fill(broker, "orders", 9)
    assert await taken(q, "orders") == 2
    assert await taken(other, "orders") == 2
    assert await taken(other, "orders") == 0
    assert await taken(q.for_tenant("other"), "orders") == 0


async def test_claims_at_the_same_time_share_the_bucket(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=2)
    await fill(q, "orders", 20)
    assert await taken(q, "orders", 1) == 1
    counts = await asyncio.gather(*(taken(q, "orders", 2) for _ in range(5)))
    assert sum(counts) == 1


async def test_the_first_claims_at_the_same_time_share_the_bucket(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=2)
    await fill(q, "orders", 20)
    # The publish keeps the store busy, so that reading the limit has to wait.
    claims = [taken(q, "orders", 2) for _ in range(5)]
    _, counts = await asyncio.gather(fill(q, "other", 1), asyncio.gather(*claims))
    assert sum(counts) == 2


async def test_a_claim_that_fails_or_is_given_up_burns_nothing(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.create_queue("orders", throughput_limit=5)
    await fill(q, "orders", 9)
    for error in (ZeroDivisionError, asyncio.CancelledError):
        with monkeypatch.context() as patch:
            patch.setattr(q.engine, "claim", AsyncMock(side_effect=error))
            with pytest.raises(error):
                await q.claim("orders", limit=5)
    assert await taken(q, "orders") == 5


@law("E1")
async def test_a_queue_deleted_below_is_unknown_even_if_its_bucket_is_empty(q: Broker) -> None:
    """Another process deleted it: the bucket is still there, and still trusted."""
    await q.create_queue("orders", throughput_limit=1)
    await fill(q, "orders", 2)
    assert await taken(q, "orders") == 1
    await q.engine.delete_queue("default", "orders")
    with pytest.raises(UnknownQueue):
        await q.claim("orders")


@law("E1")
async def test_a_deleted_queue_is_unknown_even_if_its_bucket_was_empty(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=1)
    await fill(q, "orders", 2)
    assert await taken(q, "orders") == 1
    await q.delete_queue("orders")
    with pytest.raises(UnknownQueue):
        await q.claim("orders")


async def test_a_queue_made_anew_has_its_own_limit(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=1)
    await fill(q, "orders", 2)
    assert await taken(q, "orders") == 1
    await q.delete_queue("orders")
    await q.create_queue("orders", throughput_limit=4)
    await fill(q, "orders", 9)
    assert await taken(q, "orders") == 4


async def test_a_changed_limit_holds_for_the_dead_letters_too(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=3)
    await fill(q, "orders", 3)
    for delivery in await q.claim("orders", limit=3):
        await q.reject(delivery)
    assert await taken(q, "orders.dlq", 1) == 1
    await q.update_queue("orders", throughput_limit=1)
    assert await taken(q, "orders.dlq") == 1
