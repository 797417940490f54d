"""Reading: results that somebody waits for, and the history of a queue in pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Ack, Broker, Delivery, NewMessage
from penstock.broker import read_verbs
from penstock.errors import BadInput, BadName, UnknownDelivery, UnknownMessage, UnknownQueue
from penstock.model.delivery import Result, ResultStatus
from penstock.model.limits import MAX_OFFSET, MAX_WAIT_MS
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.broker.waits import Watched, calm, within

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

pytestmark = pytest.mark.timeout(60)


async def claimed(q: Broker, count: int = 1) -> list[Delivery]:
    await q.publish_batch("orders", [NewMessage(b"%d" % n) for n in range(count)])
    return await q.claim("orders", limit=count)


async def wait_for(
    q: Broker, message_id: int, queue: str = "orders", wait_ms: int = MAX_WAIT_MS
) -> asyncio.Task[Result | None]:
    task = asyncio.create_task(q.result(queue, message_id, wait_ms=wait_ms))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await calm()
    return task


# -- results ---------------------------------------------------------------------------


@law("C5")
async def test_a_result_that_is_there_is_not_waited_for(q: Broker) -> None:
    (delivery,) = await claimed(q)
    await q.ack(delivery, b"sum")
    result = await within(q.result("orders", delivery.message.id, wait_ms=MAX_WAIT_MS))
    assert result.result == b"sum"


@law("C5")
@pytest.mark.parametrize("result", [b"sum", None])
async def test_whoever_waits_for_a_result_gets_it_with_the_ack(
    q: Broker, result: bytes | None
) -> None:
    (delivery,) = await claimed(q)
    waiting = [await wait_for(q, delivery.message.id) for _ in range(3)]
    assert not any(task.done() for task in waiting)
    await q.ack(delivery, result)
    for task in waiting:
        found = await within(task)
        assert (found.message_id, found.result) == (delivery.message.id, result)


@law("C5")
async def test_each_waits_for_its_own_message(q: Broker) -> None:
    one, two = await claimed(q, 2)
    first, second = await wait_for(q, one.message.id), await wait_for(q, two.message.id)
    await q.settle("orders", [Ack(two.receipt, b"2")])
    assert (await within(second)).result == b"2"
    await calm()
    assert not first.done()
    await q.settle("orders", [Ack(one.receipt, b"1")])
    assert (await within(first)).result == b"1"
    assert not q._waiting._results


@law("C5")
async def test_a_retry_that_ends_well(q: Broker, clock: FakeClock) -> None:
    (delivery,) = await claimed(q)
    waiting = await wait_for(q, delivery.message.id)
    await q.nack(delivery, delay_ms=1000)
    clock.advance(1000)
    (again,) = await q.claim("orders")
    assert not waiting.done()
    await q.ack(again, b"at last")
    assert (await within(waiting)).result == b"at last"


@law("C5")
async def test_a_failure_ends_the_wait(q: Broker) -> None:
    (delivery,) = await claimed(q)
    waiting = await wait_for(q, delivery.message.id)
    await q.reject(delivery, "bad")
    found = await within(waiting)
    assert (found.status, found.error, found.attempts) == (ResultStatus.FAILED, "bad", 1)
    assert not q._waiting._results


@law("C5")
@pytest.mark.parametrize("by", ["claim", "sweep"])
async def test_a_last_lapse_ends_the_wait(q: Broker, clock: FakeClock, by: str) -> None:
    await q.create_queue("orders", max_attempts=1, lease_ms=1000)
    (delivery,) = await claimed(q)
    waiting = await wait_for(q, delivery.message.id, wait_ms=MAX_WAIT_MS)
    clock.advance(delivery.lease_deadline - clock.now() - 1)
    await calm()
    assert not waiting.done()
    clock.advance(1)
    await (q.claim("orders") if by == "claim" else q.engine.sweep())
    assert (await within(waiting)).status is ResultStatus.FAILED


@law("C5")
async def test_an_expiry_ends_the_wait(q: Broker, clock: FakeClock) -> None:
    published = await q.publish("orders", b"x", ttl_ms=1000)
    waiting = await wait_for(q, published.id)
    clock.advance(1000)
    await q.engine.sweep()
    assert (await within(waiting)).status is ResultStatus.EXPIRED


@law("E1")
async def test_a_purge_ends_the_wait_with_an_error(q: Broker) -> None:
    published = await q.publish("orders", b"x")
    waiting = [await wait_for(q, published.id, queue) for queue in ("orders", "orders.dlq")]
    await q.purge("orders", "available")
    for task in waiting:
        with pytest.raises(UnknownDelivery):
            await within(task)


@law("C5")
async def test_a_dead_letter_that_was_seen_to(q: Broker) -> None:
    (delivery,) = await claimed(q)
    await q.reject(delivery)
    waiting = await wait_for(q, delivery.message.id, "orders.dlq")
    (dead,) = await q.claim("orders.dlq")
    await q.ack(dead, b"by hand")
    assert (await within(waiting)).result == b"by hand"


async def test_waiting_for_a_result_ends_when_the_time_is_over(q: Broker, clock: FakeClock) -> None:
    (delivery,) = await claimed(q)
    waiting = await wait_for(q, delivery.message.id, wait_ms=1000)
    clock.advance(999)
    await calm()
    assert not waiting.done()
    clock.advance(1)
    assert await within(waiting) is None
    assert not q._waiting._results


@law("E1")
async def test_nobody_waits_for_a_message_that_is_not_there(q: Broker) -> None:
    await claimed(q)
    with pytest.raises(UnknownMessage):
        await within(q.result("orders", 99, wait_ms=MAX_WAIT_MS))


@law("T1")
async def test_an_ack_of_another_tenant_is_nobodys_business(q: Broker) -> None:
    other = q.for_tenant("other")
    (mine,), (theirs,) = await claimed(q), await claimed(other)
    waiting = await wait_for(q, mine.message.id)
    watched = Watched(q)
    await other.ack(theirs)
    await calm()
    assert watched.calls["result"] == 0
    assert not waiting.done()


async def test_many_who_wait_for_results_of_a_busy_queue_cost_little(
    q: Broker, clock: FakeClock
) -> None:
    """All look again when something was settled, but at most four a millisecond."""
    deliveries = await claimed(q, 400)
    waiting = [await wait_for(q, item.message.id) for item in deliveries[:100]]
    watched = Watched(q)
    for delivery in deliveries[100:]:
        await q.ack(delivery)
    assert watched.calls["result"] <= 200
    for delivery in deliveries[:100]:
        await q.ack(delivery, b"done")
    clock.advance(25)
    results = await within(asyncio.gather(*waiting))
    assert [item.result for item in results] == [b"done"] * 100
    assert watched.calls["result"] <= 400


# -- the history of a queue ------------------------------------------------------------


async def lives(q: Broker) -> None:
    """Four messages: one acked, one that failed after a retry, one of another queue, one new."""
    await q.create_queue("orders", "topic = 'orders'", max_attempts=2)
    await q.create_queue("bills", "topic = 'bills'")
    for topic in ("orders", "orders", "bills", "orders"):
        await q.publish(topic, b"")
    acked, retried = await q.claim("orders", limit=2)
    await q.ack(acked)
    await q.nack(retried, delay_ms=0)
    (again,) = await q.claim("orders")
    await q.reject(again)


LIVES = [
    *[(0, "publish"), (0, "claim"), (0, "ack")],
    *[(1, "publish"), (1, "claim"), (1, "nack"), (1, "claim"), (1, "reject")],
    (3, "publish"),
]


async def test_the_history_of_a_queue_is_that_of_its_messages(q: Broker) -> None:
    await lives(q)
    page = await q.queue_history("orders")
    assert [(item.message_id, item.event.transition.value) for item in page.entries] == LIVES
    assert page.next_offset == await q.log_end()
    for item in page.entries:
        assert item.event in await q.history(item.message_id)
    again = await q.queue_history("orders", page.next_offset)
    assert (again.entries, again.next_offset) == ((), page.next_offset)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 1000])
async def test_pages_of_any_size_are_the_same_history(q: Broker, limit: int) -> None:
    await lives(q)
    assert sorted(await pages_of(q, limit)) == sorted(LIVES)


async def pages_of(q: Broker, limit: int) -> list[tuple[int, str]]:
    out: list[tuple[int, str]] = []
    position, end = 0, await q.log_end()
    while position < end:
        page = await q.queue_history("orders", position, limit=limit)
        assert page.next_offset > position
        messages = {item.message_id for item in page.entries}
        assert len(page.entries) <= limit or len(messages) == 1
        out += [(item.message_id, item.event.transition.value) for item in page.entries]
        position = page.next_offset
    return out


async def test_a_page_is_bounded_work_however_rare_the_queues_messages_are(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_verbs, "HISTORY_BATCH", 10)
    await q.create_queue("rare", "topic = 'rare'")
    await q.publish_batch("orders", [NewMessage(b"")] * 35)
    await q.publish("rare", b"")
    position, found = 0, 0
    for _ in range(4):
        page = await q.queue_history("rare", position)
        position, found = page.next_offset, found + len(page.entries)
    assert (position, found) == (36, 1)


@law("L1")
async def test_a_replaced_message_has_its_history_once(q: Broker) -> None:
    await q.publish("orders", b"old", key="k")
    await q.publish("orders", b"new", key="k")
    await q.claim("orders")
    for limit in (1, 1000):
        found = await pages_of(q, limit)
        assert [item for item in found if item[1] == "claim"] == [(0, "claim")]


@law("D1")
async def test_dead_letters_have_a_history_of_their_own(q: Broker) -> None:
    await lives(q)
    (dead,) = await q.claim("orders.dlq")
    await q.ack(dead)
    page = await q.queue_history("orders.dlq")
    assert {item.message_id for item in page.entries} == {1}
    assert "ack" in [item.event.transition.value for item in page.entries]


@law("E1")
@pytest.mark.parametrize("start", [-1, MAX_OFFSET + 1, True, 1.0, "1", None])
async def test_a_start_that_is_no_offset(q: Broker, refuses: Refuses, start: Any) -> None:
    await refuses(q.queue_history("stock", start), BadInput, "start", MAX_OFFSET)


@law("E1")
@pytest.mark.parametrize("limit", [0, 1001, True, 1.0, "1", None])
async def test_a_page_out_of_bounds(q: Broker, refuses: Refuses, limit: Any) -> None:
    await refuses(q.queue_history("stock", limit=limit), BadInput, "limit", 1000)


@law("E1")
async def test_the_history_of_no_queue(q: Broker, refuses: Refuses) -> None:
    await refuses(q.queue_history("no queue"), BadName, "queue", 128)
    await refuses(q.queue_history("nowhere"), UnknownQueue, "queue")
