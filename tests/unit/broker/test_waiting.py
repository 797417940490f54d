"""Claims that wait: what wakes them (C5), who goes first, and what becomes of those who leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import penstock
from penstock import (
    Ack,
    Backoff,
    Broker,
    BrokerOptions,
    Delivery,
    EngineOptions,
    NewMessage,
    Ordering,
    Outgoing,
)
from penstock.errors import BadInput, StoreClosed, UnknownQueue
from penstock.model.limits import CONSUMER_LEASE_MS, MAX_WAIT_MS
from penstock.storage.listener import Listener
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.broker.waits import Watched, calm, resting, until, wait_for, within

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

pytestmark = pytest.mark.timeout(60)


async def fill(q: Broker, topic: str, count: int = 1, **fields: Any) -> None:
    await q.publish_batch(topic, [NewMessage(b"%d" % n, **fields) for n in range(count)])


async def take(q: Broker, queue: str, **options: Any) -> Delivery:
    (delivery,) = await q.claim(queue, **options)
    return delivery


# -- bounds ----------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize("wait_ms", [-1, MAX_WAIT_MS + 1, True, False, 1.0, "1", None])
async def test_a_wait_out_of_bounds(q: Broker, refuses: Refuses, wait_ms: Any) -> None:
    await refuses(q.claim("stock", wait_ms=wait_ms), BadInput, "wait_ms", 30_000)
    await refuses(q.result("stock", 0, wait_ms=wait_ms), BadInput, "wait_ms", 30_000)


@law("E1")
async def test_nobody_waits_for_a_queue_that_is_not_there(q: Broker) -> None:
    for queue in ("nowhere", "nowhere.dlq"):
        with pytest.raises(UnknownQueue):
            await within(q.claim(queue, wait_ms=1000))
        with pytest.raises(UnknownQueue):
            await within(q.result(queue, 0, wait_ms=1000))


async def test_what_is_there_is_not_waited_for(q: Broker) -> None:
    await fill(q, "orders", 3)
    assert len(await within(q.claim("orders", limit=5, wait_ms=MAX_WAIT_MS))) == 3


@pytest.mark.parametrize("wait_ms", [1, 1000, MAX_WAIT_MS])
async def test_a_wait_ends_when_its_time_is_over(q: Broker, clock: FakeClock, wait_ms: int) -> None:
    await q.create_queue("orders")
    waiting = await wait_for(q, "orders", wait_ms=wait_ms)
    clock.advance(wait_ms - 1)
    await calm()
    assert not waiting.done()
    clock.advance(1)
    assert await within(waiting) == []
    assert not q._waiting._queues


async def test_waiting_by_the_clock_of_the_machine() -> None:
    async with penstock.open("memory://") as q:
        await q.publish("orders", b"soon", delay_ms=30)
        (delivery,) = await within(q.claim("orders", wait_ms=5000))
        assert delivery.claimed_at >= delivery.message.deliver_at
        begin = asyncio.get_running_loop().time()
        assert await within(q.claim("orders", wait_ms=20)) == []
        assert asyncio.get_running_loop().time() - begin >= 0.015


# -- what wakes ------------------------------------------------------------------------

Step = Callable[[Broker, FakeClock], Awaitable[object]]


async def _by_publish(q: Broker, clock: FakeClock) -> None:
    await q.publish("orders", b"")


async def _by_batch(q: Broker, clock: FakeClock) -> None:
    await fill(q, "orders", 2)


async def _by_due_delay(q: Broker, clock: FakeClock) -> None:
    await q.publish("orders", b"", delay_ms=5000)
    await calm()
    assert resting(q, "orders") == 1
    clock.advance(5000)


async def _by_due_delay_of_two(q: Broker, clock: FakeClock) -> None:
    """The second is due earlier."""
    await q.publish("orders", b"", delay_ms=20_000)
    await q.publish("orders", b"", delay_ms=5000)
    clock.advance(5000)


async def _by_settle_with_publish(q: Broker, clock: FakeClock) -> None:
    held = await take(q, "held")
    await q.settle("held", [Ack(held.receipt)], publish=[Outgoing("orders", [NewMessage(b"")])])


async def _by_replay(q: Broker, clock: FakeClock) -> None:
    await q.replay("orders", "failed")


async def _by_slow_replay(q: Broker, clock: FakeClock) -> None:
    await q.replay("orders", "failed", rate=1)


async def _by_resume(q: Broker, clock: FakeClock) -> None:
    await q.pause("orders")
    await q.publish("orders", b"")
    await calm()
    assert resting(q, "orders") == 1
    await q.resume("orders")


async def _by_policy(q: Broker, clock: FakeClock) -> None:
    await q.update_queue("orders", paused=True)
    await q.publish("orders", b"")
    await calm()
    assert resting(q, "orders") == 1
    await q.update_queue("orders", paused=False)


WAKES: Final[dict[str, Step]] = {
    "publish": _by_publish,
    "publish_batch": _by_batch,
    "due delay": _by_due_delay,
    "earlier due delay": _by_due_delay_of_two,
    "settle with publish": _by_settle_with_publish,
    "replay": _by_replay,
    "replay with a rate": _by_slow_replay,
    "resume": _by_resume,
    "changed policy": _by_policy,
}


@law("C5")
@pytest.mark.parametrize("step", WAKES.values(), ids=WAKES)
async def test_a_waiting_claim_is_woken_by(q: Broker, clock: FakeClock, step: Step) -> None:
    await q.create_queue("orders", "topic = 'orders'")
    await q.create_queue("held", "topic = 'held'")
    await fill(q, "held")
    await fill(q, "orders")
    await q.reject(await take(q, "orders"))
    waiting = await wait_for(q, "orders")
    await step(q, clock)
    assert len(await within(waiting)) == 1


async def _nack(q: Broker, clock: FakeClock, held: Delivery) -> None:
    await q.nack(held)


async def _nack_with_delay(q: Broker, clock: FakeClock, held: Delivery) -> None:
    await q.nack(held, delay_ms=2000)
    clock.advance(2000)


async def _release(q: Broker, clock: FakeClock, held: Delivery) -> None:
    await q.release(held)


async def _lapse(q: Broker, clock: FakeClock, held: Delivery) -> None:
    clock.advance(10_000)


async def _lapse_of_an_extended_lease(q: Broker, clock: FakeClock, held: Delivery) -> None:
    await q.extend(held, 2000)
    clock.advance(2000)


async def _swept_lapse(q: Broker, clock: FakeClock, held: Delivery) -> None:
    clock.advance(10_000)
    await q.sweep()


COMES_BACK: Final = {
    "nack": _nack,
    "nack with a delay": _nack_with_delay,
    "release": _release,
    "lapse": _lapse,
    "lapse of an extended lease": _lapse_of_an_extended_lease,
    "lapse and sweep": _swept_lapse,
}


@law("C5")
@pytest.mark.parametrize("step", COMES_BACK.values(), ids=COMES_BACK)
async def test_a_waiting_claim_is_woken_by_what_comes_back(
    q: Broker, clock: FakeClock, step: Callable[[Broker, FakeClock, Delivery], Awaitable[None]]
) -> None:
    await q.create_queue("orders", backoff=Backoff(0, 0))
    await fill(q, "orders")
    held = await take(q, "orders", lease_ms=10_000)
    waiting = await wait_for(q, "orders")
    await step(q, clock, held)
    (again,) = await within(waiting)
    assert again.message.id == held.message.id


@law("C5")
async def test_dead_letters_wake(q: Broker) -> None:
    await fill(q, "orders")
    waiting = await wait_for(q, "orders.dlq")
    await q.reject(await take(q, "orders"), "no good")
    (dead,) = await within(waiting)
    assert dead.queue == "orders.dlq"


@law("C5")
async def test_dead_letter_copies_wake(q: Broker) -> None:
    await q.create_queue("orders", "topic = 'orders'", dead_letter_topic="dead")
    await q.create_queue("triage", "dead_letter_original_queue = 'orders'")
    await q.publish("orders", b"x")
    waiting = await wait_for(q, "triage")
    await q.reject(await take(q, "orders"), "no good")
    (copy,) = await within(waiting)
    assert copy.message.headers["dead_letter_error"] == "no good"


@law("C5")
async def test_catching_up_wakes(q: Broker) -> None:
    await fill(q, "orders", 2)
    await q.create_queue("late", start="earliest")
    waiting = await wait_for(q, "late")
    await q.route("late", 1)
    assert len(await within(waiting)) == 1


@law("C5")
async def test_a_router_outside_wakes(q: Broker) -> None:
    await fill(q, "orders", 2)
    await q.create_queue("late", start="earliest")
    waiting = await wait_for(q, "late")
    await q.assign("late", filter="TRUE", start=0, end=1, offsets=[0])
    assert len(await within(waiting)) == 1


@law("C5")
async def test_a_lease_that_was_granted_while_one_waited_wakes_it_when_it_lapses(
    q: Broker, clock: FakeClock
) -> None:
    """The waiter knew of no due time; the claim of another has made one."""
    await q.create_queue("orders")
    first = await wait_for(q, "orders", lease_ms=1000)
    second = await wait_for(q, "orders")
    await fill(q, "orders")
    (held,) = await within(first)
    await until(lambda: resting(q, "orders") == 1)
    clock.advance(1000)
    (again,) = await within(second)
    assert (again.message.id, again.attempts) == (held.message.id, 2)


@law("C5")
async def test_a_due_time_that_meets_the_end_of_the_wait(q: Broker, clock: FakeClock) -> None:
    """Whoever waits for as long as the delay gets it, whichever alarm rings first."""
    await q.create_queue("orders")
    first = await wait_for(q, "orders", wait_ms=5000)
    await q.publish("orders", b"", delay_ms=5000)
    await calm()
    clock.advance(5000)
    assert len(await within(first)) == 1
    await q.publish("orders", b"", delay_ms=5000)
    second = await wait_for(q, "orders", wait_ms=5000)
    clock.advance(5000)
    assert len(await within(second)) == 1


@law("C5")
async def test_a_due_time_that_another_one_waited_for(q: Broker, clock: FakeClock) -> None:
    """The first has set the alarm and gone; it rings right after the second has given up."""
    await q.create_queue("orders")
    first = await wait_for(q, "orders")
    second = await wait_for(q, "orders", wait_ms=5000)
    await q.publish("orders", b"", delay_ms=5000)
    await calm()
    first.cancel()
    await calm()
    clock.advance(5000)
    assert len(await within(second)) == 1


@law("T1")
async def test_the_line_of_another_tenant_is_another_line(q: Broker) -> None:
    other = q.for_tenant("other")
    for broker in (q, other):
        await broker.create_queue("orders")
    mine, theirs = await wait_for(q, "orders"), await wait_for(other, "orders")
    await fill(other, "orders")
    assert len(await within(theirs)) == 1
    await calm()
    assert not mine.done()
    await fill(q, "orders")
    assert len(await within(mine)) == 1


async def test_a_broker_made_of_the_same_engine_shares_the_lines(q: Broker) -> None:
    """The engine has one listener; whoever takes it over must not silence the first."""
    await q.create_queue("orders")
    waiting = await wait_for(q, "orders")
    twin = Broker(q.engine, q.options)
    other = asyncio.create_task(twin.claim("orders", wait_ms=MAX_WAIT_MS))
    await until(lambda: resting(q, "orders") == 2)
    await fill(q, "orders", 2)
    assert len(await within(waiting)) == len(await within(other)) == 1


# -- the throughput limit --------------------------------------------------------------


@law("C5")
async def test_a_waiting_claim_goes_on_when_there_is_a_token(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", throughput_limit=2)
    await fill(q, "orders", 9)
    assert len(await q.claim("orders", limit=9)) == 2
    waiting = await wait_for(q, "orders", limit=9)
    clock.advance(499)
    await calm()
    assert not waiting.done()
    clock.advance(1)
    assert len(await within(waiting)) == 1
    one, two = await wait_for(q, "orders"), await wait_for(q, "orders")
    clock.advance(500)
    assert len(await within(one)) == 1
    await calm()
    assert not two.done()
    clock.advance(500)
    assert len(await within(two)) == 1


async def test_a_throttled_queue_wakes_nobody_in_vain(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", throughput_limit=1)
    await fill(q, "orders", 2)
    assert len(await q.claim("orders")) == 1
    waiting = await wait_for(q, "orders")
    watched = Watched(q)
    for _ in range(50):
        await q.publish("orders", b"")
    await calm()
    assert watched.calls == {}
    clock.advance(1000)
    assert len(await within(waiting)) == 1
    assert watched.calls["claim"] == 1


@law("C5")
async def test_waiting_in_vain_burns_no_tokens(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", throughput_limit=5)
    first = await wait_for(q, "orders", limit=5)
    second = await wait_for(q, "orders", limit=5)
    await fill(q, "orders", 5)
    assert len(await within(first)) == 5
    second.cancel()
    clock.advance(1000)
    third = await wait_for(q, "orders", limit=5)
    await fill(q, "orders", 5)
    assert len(await within(third)) == 5


@law("C5")
async def test_a_token_that_came_back_is_not_waited_for_without_end(
    q: Broker, clock: FakeClock
) -> None:
    """One holds the only token while it looks in vain; a publish just then concerns them all."""
    await q.create_queue("orders", throughput_limit=1)
    first, watched = await wait_for(q, "orders"), Watched(q)
    watched.holds_all = True
    watched.open.clear()
    passing = asyncio.create_task(q.claim("orders"))
    await until(lambda: watched.calls["claim"] == 1)
    await fill(q, "orders")
    watched.open.set()
    assert await within(passing) == []
    await calm()
    clock.advance(1000)
    assert len(await within(first)) == 1


@law("C5")
@pytest.mark.parametrize("limit", [None, 100])
async def test_a_limit_that_is_lifted_is_lifted_for_those_who_wait(
    q: Broker, limit: int | None
) -> None:
    await q.create_queue("orders", throughput_limit=1)
    await fill(q, "orders", 5)
    for delivery in await q.claim("orders"):
        await q.reject(delivery)
    await q.claim("orders.dlq")
    one, two = await wait_for(q, "orders"), await wait_for(q, "orders")
    await q.update_queue("orders", throughput_limit=limit)
    assert len(await within(one)) == len(await within(two)) == 1


# -- ordered queues --------------------------------------------------------------------


@law("C5")
async def test_on_an_ordered_queue_the_owner_is_woken(q: Broker) -> None:
    """The first in line has no share of what is published; the one who has is notified too."""
    await q.create_queue("orders", ordering=Ordering.PARTITION)
    await fill(q, "orders", 1, partition_key="a")
    held = await take(q, "orders", consumer="owner")
    for name in ("x", "y"):
        await q.join("orders", name)
    lines = [await wait_for(q, "orders", consumer=name) for name in ("x", "y", "owner")]
    await fill(q, "orders", 1, partition_key="a")
    await q.ack(held)
    (next_one,) = await within(lines[2])
    assert next_one.message.partition_key == "a"
    assert not lines[0].done()
    assert not lines[1].done()


@law("C5")
async def test_a_consumer_that_leaves_frees_its_partitions_for_those_who_wait(
    q: Broker,
) -> None:
    await q.create_queue("orders", ordering=Ordering.PARTITION)
    await fill(q, "orders", 1, partition_key="a")
    held = await take(q, "orders", consumer="x")
    waiting = await wait_for(q, "orders", consumer="y")
    await q.leave("orders", "x")
    (again,) = await within(waiting)
    assert again.message.id == held.message.id


@law("O1")
async def test_whoever_waits_is_alive(q: Broker, clock: FakeClock) -> None:
    """A long wait is no silence: the consumer keeps its partition all the while."""
    await q.create_queue("orders", ordering=Ordering.PARTITION)
    await fill(q, "orders", 2, partition_key="a")
    held = await take(q, "orders", consumer="x", lease_ms=10 * CONSUMER_LEASE_MS)
    for _ in range(3):
        waiting = await wait_for(q, "orders", consumer="x")
        while not waiting.done():
            clock.advance(1000)
            await calm(20)
    clock.advance(1000)
    assert await q.claim("orders", consumer="y") == []
    assert (await q.ack(held)).ok


@law("C5")
async def test_a_consumer_that_falls_silent_is_inherited(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", ordering=Ordering.PARTITION)
    await fill(q, "orders", 1, partition_key="a")
    await take(q, "orders", consumer="x", lease_ms=10 * CONSUMER_LEASE_MS)
    waiting = await wait_for(q, "orders", consumer="y")
    for _ in range(CONSUMER_LEASE_MS // 1000 - 1):
        clock.advance(1000)
        await calm(20)
    assert not waiting.done()
    clock.advance(1000)
    assert len(await within(waiting)) == 1


@law("C5")
async def test_a_queue_that_becomes_ordered_while_they_wait(q: Broker) -> None:
    await q.create_queue("orders")
    lines = [await wait_for(q, "orders", consumer=name) for name in ("x", "y")]
    await q.update_queue("orders", ordering=Ordering.PARTITION)
    await calm()
    await q.publish_batch(
        "orders", [NewMessage(b"", partition_key="a"), NewMessage(b"", partition_key="b")]
    )
    replies = [await within(line) for line in lines]
    assert sorted(item.message.partition_key for (item,) in replies) == ["a", "b"]


# -- who goes first, and at what cost --------------------------------------------------


async def test_first_come_first_served(q: Broker) -> None:
    await q.create_queue("orders")
    lines = [await wait_for(q, "orders", consumer=f"c{n}") for n in range(5)]
    for n, line in enumerate(lines):
        await q.publish("orders", b"%d" % n)
        (delivery,) = await within(line)
        assert delivery.payload == b"%d" % n
        assert not any(later.done() for later in lines[n + 1 :])


async def test_whoever_was_woken_in_vain_keeps_its_place(q: Broker) -> None:
    await q.create_queue("orders")
    watched = Watched(q)
    lines = [await wait_for(q, "orders") for _ in range(3)]
    before = watched.calls["claim"]
    q.engine.listener.ready("default", "orders")
    q.engine.listener.ready("default", "orders")
    await calm()
    assert watched.calls["claim"] > before
    for line in lines:
        await q.publish("orders", b"")
        assert len(await within(line)) == 1


@law("C5")
@pytest.mark.parametrize("limit, waiters, messages", [(1, 100, 100), (3, 10, 12), (7, 40, 100)])
async def test_one_telling_is_enough_for_everybody(
    q: Broker, limit: int, waiters: int, messages: int
) -> None:
    """One batch tells once; whoever takes a part of it wakes the next."""
    await q.create_queue("orders")
    watched = Watched(q)
    lines = [await wait_for(q, "orders", limit=limit) for _ in range(waiters)]
    watched.calls.clear()
    await fill(q, "orders", messages)
    served = -(-messages // limit)
    counts = [len(await within(line)) for line in lines[:served]]
    assert sum(counts) == messages
    await calm()
    assert resting(q, "orders") == waiters - served
    # Of those who are left, few were woken in vain.
    assert watched.calls["claim"] <= 2 * served + 4


async def test_a_hundred_are_awake_after_a_few_commits(tmp_path: Path) -> None:
    """Every claim waits for its commit; if one woke one, they would follow one another."""
    commits: list[int] = []

    class Commits(Listener):
        def committed(self, records: int, seconds: float) -> None:
            commits.append(records)

    options = BrokerOptions(listener=Commits())
    async with penstock.open(f"rocksdb://{tmp_path}/store", options=options, keepers=False) as q:
        await q.create_queue("orders")
        lines = [await wait_for(q, "orders") for _ in range(100)]
        commits.clear()
        await fill(q, "orders", 100)
        await within(asyncio.gather(*lines))
        assert len(commits) <= 20


async def test_nobody_waits_for_the_commit_of_whoever_came_first(q: Broker) -> None:
    """A look in vain is over in a moment; one that found something waits for the disk."""
    await q.create_queue("orders")
    watched = Watched(q)
    first, second = await wait_for(q, "orders"), await wait_for(q, "orders")
    watched.open.clear()
    for count in (1, 2):
        await fill(q, "orders")
        await calm()
        assert (await q.stats("orders")).in_flight == count
    assert not first.done()
    watched.open.set()
    assert len(await within(first)) == len(await within(second)) == 1


async def test_a_thousand_idle_waiters_cost_nothing(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", "topic = 'orders'")
    await q.publish("orders", b"", delay_ms=29_000)
    watched = Watched(q)
    lines = [await wait_for(q, "orders") for _ in range(1000)]
    assert watched.calls["claim"] == 1000
    assert watched.calls["next_due"] == 1
    watched.calls.clear()
    for _ in range(28):
        clock.advance(1000)
        await calm(5)
    assert watched.calls == {}
    clock.advance(1000)
    assert len(await within(lines[0])) == 1
    await calm()
    assert watched.calls["claim"] <= 6
    watched.calls.clear()
    await fill(q, "elsewhere")
    await calm()
    assert watched.calls == {}
    clock.advance(1000)
    assert await within(asyncio.gather(*lines[1:])) == [[]] * 999
    assert watched.calls["claim"] <= 4
    assert not q._waiting._queues


async def test_a_queue_that_is_overdue_and_gives_nothing_is_not_asked_all_the_time(
    q: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may say so, and be early; whoever waits looks at it now and then."""
    await q.create_queue("orders")
    watched = Watched(q)

    async def overdue(tenant: str, queue: str) -> int:
        return clock.now() - 1

    monkeypatch.setattr(q.engine, "next_due", overdue)
    waiting = await wait_for(q, "orders")
    await calm()
    assert watched.calls["claim"] == 1
    clock.advance(1000)
    await calm()
    assert watched.calls["claim"] == 2
    waiting.cancel()


# -- whoever leaves --------------------------------------------------------------------


async def cancel_under_way(
    q: Broker, watched: Watched, waiting: asyncio.Task[list[Delivery]]
) -> asyncio.Task[None]:
    """Publish, and cancel the claim once it has its lease but not its commit.

    The publish is a task, because it is answered after the claims of its commit.
    """
    begun = watched.calls["claim"]
    publishing = asyncio.create_task(fill(q, "orders"))
    await until(lambda: watched.calls["claim"] > begun)
    assert waiting.cancel()
    return publishing


async def test_a_claim_that_is_cancelled_under_way_keeps_nothing(q: Broker) -> None:
    """The engine has granted the lease, and the client has hung up: it goes back at once."""
    await q.create_queue("orders", max_attempts=1, throughput_limit=1)
    watched = Watched(q)
    waiting = await wait_for(q, "orders")
    await within(await cancel_under_way(q, watched, waiting))
    with pytest.raises(asyncio.CancelledError):
        await within(waiting)
    await calm()
    assert watched.calls["settle"] == 1, "a lease was granted and given back"
    stats = await q.stats("orders")
    assert (stats.available, stats.in_flight, stats.failed) == (1, 0, 0)
    # Neither the attempt nor the token counts.
    (delivery,) = await q.claim("orders")
    assert (await q.ack(delivery)).ok


@law("C5")
async def test_what_a_cancelled_claim_gives_back_is_the_next_ones(q: Broker) -> None:
    await q.create_queue("orders")
    watched = Watched(q)
    first, second = await wait_for(q, "orders"), await wait_for(q, "orders")
    publishing = await cancel_under_way(q, watched, first)
    assert len(await within(second)) == 1
    assert first.cancelled()
    assert watched.calls["settle"] == 1, "a lease was granted and given back"
    await within(publishing)


@law("C5")
@pytest.mark.parametrize("turns", range(8))
async def test_whenever_a_claim_is_cancelled_it_has_the_delivery_or_the_queue_has(
    q: Broker, turns: int
) -> None:
    await q.create_queue("orders", max_attempts=1)
    waiting = await wait_for(q, "orders")
    publishing = asyncio.create_task(fill(q, "orders"))
    await calm(turns)
    waiting.cancel()
    await within(publishing)
    await calm()
    stats = await q.stats("orders")
    given = 0 if waiting.cancelled() else len(waiting.result())
    assert (stats.available, stats.in_flight, stats.failed) == (1 - given, given, 0)


async def test_a_cancelled_claim_whose_queue_is_gone_ends_quietly(q: Broker) -> None:
    await q.create_queue("orders")
    watched = Watched(q)
    waiting = await wait_for(q, "orders")
    publishing = await cancel_under_way(q, watched, waiting)
    await q.delete_queue("orders")
    await within(publishing)
    await until(lambda: watched.calls["settle"] == 1)
    await calm()
    assert not q._waiting._tasks


@law("C5")
async def test_one_that_is_cancelled_when_it_was_just_woken_passes_it_on(
    clock: FakeClock,
) -> None:
    tasks: list[asyncio.Task[list[Delivery]]] = []

    class Hangup(Listener):
        def ready(self, tenant: str, queue: str) -> None:
            if tasks:
                tasks.pop(0).cancel()

    options = BrokerOptions(engine=EngineOptions(clock=clock), listener=Hangup())
    async with penstock.open("memory://", options=options, keepers=False) as q:
        await q.create_queue("orders")
        first, second = await wait_for(q, "orders"), await wait_for(q, "orders")
        tasks.append(first)
        await fill(q, "orders")
        assert len(await within(second)) == 1
        assert first.cancelled()


async def test_whoever_is_cancelled_leaves_nothing_behind(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders")
    await q.publish("orders", b"", delay_ms=1000)
    watched = Watched(q)
    lines = [await wait_for(q, "orders") for _ in range(10)]
    for line in lines:
        line.cancel()
    await within(asyncio.gather(*lines, return_exceptions=True))
    assert not q._waiting._queues
    assert clock.next_alarm() is None
    watched.calls.clear()
    clock.advance(MAX_WAIT_MS)
    await calm()
    assert watched.calls == {}


@law("C5")
async def test_whoever_gives_up_between_telling_and_looking_leaves_it_to_the_next(
    q: Broker, clock: FakeClock
) -> None:
    """The time of the first is over in the same instant in which it is woken."""
    await q.create_queue("orders")
    first = await wait_for(q, "orders", wait_ms=1000)
    second = await wait_for(q, "orders", wait_ms=2000)
    publishing = asyncio.create_task(q.publish("orders", b""))
    clock.advance(1000)
    await within(publishing)
    given = await within(first)
    if not given:
        given = await within(second)
    assert len(given) == 1
    second.cancel()


async def test_an_error_of_the_engine_reaches_whoever_waits_and_wakes_the_next(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.create_queue("orders")
    lines = [await wait_for(q, "orders") for _ in range(3)]

    async def broken(*args: object) -> list[Delivery]:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(q.engine, "claim", broken)
        await fill(q, "orders")
        for line in lines:
            with pytest.raises(ZeroDivisionError):
                await within(line)
    assert len(await q.claim("orders")) == 1


# -- the end of the queue, and of the store --------------------------------------------


@pytest.mark.parametrize("queue", ["orders", "orders.dlq"])
async def test_a_queue_that_is_deleted_ends_the_waits_for_it(q: Broker, queue: str) -> None:
    await q.create_queue("orders", throughput_limit=1)
    await fill(q, "orders", 2)
    if queue == "orders":
        await q.claim("orders", limit=2)
    claims = [await wait_for(q, queue) for _ in range(10)]
    result = asyncio.create_task(q.result(queue, 1, wait_ms=MAX_WAIT_MS))
    await calm()
    await q.delete_queue("orders")
    for waiting in (*claims, result):
        with pytest.raises(UnknownQueue):
            await within(waiting)


async def test_a_queue_that_another_process_deleted_ends_the_waits_too(q: Broker) -> None:
    await q.create_queue("orders")
    claims = [await wait_for(q, "orders") for _ in range(10)]
    await q.engine.delete_queue("default", "orders")
    for waiting in claims:
        with pytest.raises(UnknownQueue):
            await within(waiting)


async def test_a_store_that_is_closed_ends_all_waits(options: BrokerOptions) -> None:
    q = await penstock.open("memory://", options=options, keepers=False)
    other = q.for_tenant("other")
    for broker in (q, other):
        await broker.create_queue("orders", "topic = 'orders'")
        await fill(broker, "elsewhere")
    claims = [await wait_for(broker, "orders") for broker in (q, other)]
    results = [
        asyncio.create_task(broker.result("elsewhere", 0, wait_ms=MAX_WAIT_MS)) for broker in (q,)
    ]
    await calm()
    await q.close()
    for waiting in (*claims, *results):
        with pytest.raises(StoreClosed):
            await within(waiting)
    with pytest.raises(StoreClosed):
        await within(other.claim("orders", wait_ms=1000))
    with pytest.raises(StoreClosed):
        await within(other.result("orders", 0, wait_ms=1000))


@law("S3")
async def test_a_claim_under_way_when_the_store_closes_is_given_back_first(
    tmp_path: Path,
) -> None:
    url = f"rocksdb://{tmp_path}/store"
    q = await penstock.open(url, keepers=False)
    await q.create_queue("orders", max_attempts=1)
    watched = Watched(q)
    waiting = await wait_for(q, "orders")
    publishing = await cancel_under_way(q, watched, waiting)
    await within(q.close())
    await within(publishing)
    assert waiting.cancelled()
    assert watched.calls["settle"] == 1, "a lease was granted and given back"
    async with penstock.open(url, keepers=False) as q:
        assert len(await q.claim("orders")) == 1


# -- the other listener ----------------------------------------------------------------


class Ear(Listener):
    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def ready(self, tenant: str, queue: str) -> None:
        self.heard.append(("ready", tenant, queue))

    def lapsed(self, tenant: str, queue: str, count: int) -> None:
        self.heard.append(("lapsed", tenant, queue, count))

    def committed(self, records: int, seconds: float) -> None:
        self.heard.append(("committed",))


@pytest.fixture
async def heard(tmp_path: Path, clock: FakeClock) -> AsyncIterator[tuple[Broker, Ear]]:
    ear = Ear()
    options = BrokerOptions(engine=EngineOptions(clock=clock), listener=ear)
    async with penstock.open(f"rocksdb://{tmp_path}/s", options=options, keepers=False) as q:
        yield q, ear


async def test_somebody_else_may_listen_too(heard: tuple[Broker, Ear], clock: FakeClock) -> None:
    q, ear = heard
    await q.create_queue("orders")
    waiting = await wait_for(q, "orders", lease_ms=1000)
    await fill(q, "orders", 2)
    assert len(await within(waiting)) == 1
    assert ("ready", "default", "orders") in ear.heard
    assert ("committed",) in ear.heard
    clock.advance(1000)
    assert len(await q.claim("orders", limit=5)) == 2
    assert ("lapsed", "default", "orders", 1) in ear.heard
    assert q.for_tenant("other").options.listener is ear
