"""Explain: wherever a message stands, the reason in words, and whether a claim gets it."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from penstock import Backoff, Broker, Delivery, NewMessage, Ordering, Start, State
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

WAITS: Final = ("it is available: a claim takes it in its turn",)


async def said(q: Broker, message_id: int, queue: str = "orders") -> tuple[Any, ...]:
    why = await q.explain(queue, message_id)
    assert (why.queue, why.message_id) == (queue, message_id)
    return why.state, why.deliverable, *why.reasons


async def publish(q: Broker, **options: Any) -> int:
    return (await q.publish("orders", b"", **options)).id


async def take(q: Broker, queue: str = "orders", **options: Any) -> Delivery:
    (delivery,) = await q.claim(queue, **options)
    return delivery


# -- in the queue ----------------------------------------------------------------------


async def test_available(q: Broker) -> None:
    message_id = await publish(q)
    assert await said(q, message_id) == (State.AVAILABLE, True, *WAITS)


async def test_in_words(q: Broker) -> None:
    message_id = await publish(q)
    assert str(await q.explain("orders", message_id)) == (
        "message 0 in 'orders': available; it is available: a claim takes it in its turn"
    )
    await q.create_queue("none", "FALSE")
    text = str(await q.explain("none", message_id))
    assert text.startswith("message 0 in 'none': not in the queue; the filter is not TRUE: ")


async def test_delayed(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q, delay_ms=500)
    clock.advance(200)
    due = clock.now() + 300
    assert await said(q, message_id) == (
        State.DELAYED,
        False,
        f"delayed until {due}, 300 ms from now",
    )


async def test_waiting_for_its_retry(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q)
    await q.nack(await take(q), "no", delay_ms=70)
    assert await said(q, message_id) == (
        State.DELAYED,
        False,
        f"delayed until {clock.now() + 70}, 70 ms from now",
    )


async def test_held(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q)
    await take(q, consumer="worker-7", lease_ms=5_000)
    clock.advance(4_999)
    assert await said(q, message_id) == (
        State.IN_FLIGHT,
        False,
        "held by 'worker-7' for 1 ms more",
    )


async def test_due_but_nobody_has_claimed_since(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q, delay_ms=500)
    clock.advance(500)
    assert await said(q, message_id) == (
        State.DELAYED,
        True,
        "its delay is over: the next claim takes it in its turn",
    )


async def test_lapsed_but_nobody_has_claimed_since(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q)
    await take(q, consumer="worker-7", lease_ms=5_000)
    clock.advance(5_000)
    assert await said(q, message_id) == (
        State.IN_FLIGHT,
        True,
        "the lease of 'worker-7' ran out: the next claim takes it in its turn",
    )


@pytest.mark.parametrize("what", ["due", "lapsed"])
async def test_time_has_passed_but_something_else_blocks(
    q: Broker, clock: FakeClock, what: str
) -> None:
    message_id = await publish(q, delay_ms=100 if what == "due" else None, ttl_ms=100)
    if what == "lapsed":
        await take(q, lease_ms=100)
    await q.pause("orders")
    clock.advance(100)
    assert await said(q, message_id) == (
        State.DELAYED if what == "due" else State.IN_FLIGHT,
        False,
        "the queue is paused",
        f"it expired at {clock.now()}; the next claim or sweep moves it",
    )
    await q.resume("orders")
    assert not (await said(q, message_id))[1]
    assert await q.claim("orders") == []


async def test_lapsed_without_attempts_left(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", max_attempts=1)
    message_id = await publish(q)
    await take(q, consumer="worker-7", lease_ms=5_000)
    clock.advance(5_000)
    state, deliverable, reason = await said(q, message_id)
    assert (state, deliverable) == (State.IN_FLIGHT, False)
    assert reason.startswith(
        "the lease of 'worker-7' ran out and no attempts are left: the next claim or sweep"
    )


async def test_max_attempts_was_lowered(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", max_attempts=3)
    message_id = await publish(q)
    await q.nack(await take(q), delay_ms=50)
    await q.update_queue("orders", max_attempts=1)
    assert await said(q, message_id) == (
        State.DELAYED,
        False,
        f"delayed until {clock.now() + 50}, 50 ms from now",
    )
    clock.advance(50)
    lowered = "max_attempts was lowered to 1: it fails when a claim reaches it"
    assert await said(q, message_id) == (State.DELAYED, False, lowered)
    assert await q.claim("orders") == []
    state, deliverable, reason = await said(q, message_id)
    assert (state, deliverable) == (State.FAILED, False)
    assert "after 1 attempts: max_attempts was lowered to 1" in reason
    assert await said(q, message_id, "orders.dlq") == (State.AVAILABLE, True, *WAITS)


async def test_done(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q)
    delivery = await take(q)
    clock.advance(5)
    await q.ack(delivery)
    assert await said(q, message_id) == (State.DONE, False, f"it was acked at {clock.now()}")


async def test_failed_with_its_error(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", max_attempts=2, backoff=Backoff(0, 0))
    message_id = await publish(q)
    await q.nack(await take(q), "first")
    await q.nack(await take(q), "no such customer")
    assert await said(q, message_id) == (
        State.FAILED,
        False,
        f"it failed at {clock.now()} after 2 attempts: no such customer; it waits in orders.dlq",
    )


async def test_failed_without_an_error(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q)
    await q.reject(await take(q))
    assert await said(q, message_id) == (
        State.FAILED,
        False,
        f"it failed at {clock.now()} after 1 attempts; it waits in orders.dlq",
    )


async def test_expired(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q, ttl_ms=100)
    clock.advance(100)
    await q.sweep()
    assert await said(q, message_id) == (State.EXPIRED, False, f"it expired at {clock.now()}")


async def test_past_its_time_but_nobody_has_claimed_since(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q, ttl_ms=100)
    clock.advance(150)
    assert await said(q, message_id) == (
        State.AVAILABLE,
        False,
        f"it expired at {clock.now() - 50}; the next claim or sweep moves it",
    )
    assert await q.claim("orders") == []


async def test_paused(q: Broker) -> None:
    message_id = await publish(q)
    await q.pause("orders")
    assert await said(q, message_id) == (State.AVAILABLE, False, "the queue is paused")
    await q.resume("orders")
    assert await said(q, message_id) == (State.AVAILABLE, True, *WAITS)


async def test_every_reason_is_given(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q, ttl_ms=1)
    await q.pause("orders")
    clock.advance(1)
    assert await said(q, message_id) == (
        State.AVAILABLE,
        False,
        "the queue is paused",
        f"it expired at {clock.now()}; the next claim or sweep moves it",
    )


# -- not in the queue ------------------------------------------------------------------


@law("R1")
@pytest.mark.parametrize(
    "filter, headers, reason",
    [
        (
            "topic = 'orders' AND amount >= 100",
            {"amount": 99},
            "the filter is not TRUE: amount >= 100 is FALSE because amount is 99",
        ),
        (
            "amount >= 100",
            {},
            "the filter is not TRUE: amount >= 100 is NULL because header amount is absent",
        ),
        (
            "amount >= 100 AND country = 'DE'",
            {"country": "FR"},
            (
                "the filter is not TRUE: amount >= 100 is NULL because header amount is absent; "
                "country = 'DE' is FALSE because country is 'FR'"
            ),
        ),
    ],
)
async def test_which_clause_is_not_true(
    q: Broker, filter: str, headers: dict[str, Any], reason: str
) -> None:
    await q.create_queue("picky", filter)
    message_id = await publish(q, headers=headers)
    assert await said(q, message_id, "picky") == (None, False, reason)


async def test_still_to_be_routed(q: Broker) -> None:
    ids = [await publish(q) for _ in range(3)]
    await q.create_queue("late", start="earliest")
    await q.route("late", 1)
    assert await said(q, ids[0], "late") == (State.AVAILABLE, True, *WAITS)
    assert await said(q, ids[1], "late") == (
        None,
        False,
        "the queue is routed up to offset 1 and has not reached the message",
    )


BEFORE: Final = (
    "it was published before the queue or its filter, was cancelled or purged, or was removed"
)


async def test_published_before_the_queue(q: Broker) -> None:
    message_id = await publish(q)
    await q.create_queue("late")
    state, deliverable, reason = await said(q, message_id, "late")
    assert (state, deliverable) == (None, False)
    assert BEFORE in reason
    await q.replay("late", "log")
    assert await said(q, message_id, "late") == (State.AVAILABLE, True, *WAITS)


async def test_before_the_offset_that_the_queue_started_at(q: Broker) -> None:
    message_id = await publish(q)
    await publish(q)
    await q.create_queue("late", start=Start("offset", 1))
    assert BEFORE in (await said(q, message_id, "late"))[2]


async def test_published_before_the_filter(q: Broker) -> None:
    await q.create_queue("picky", "FALSE")
    message_id = await publish(q)
    await q.update_queue("picky", filter="TRUE")
    assert BEFORE in (await said(q, message_id, "picky"))[2]


async def test_purged(q: Broker) -> None:
    message_id = await publish(q)
    await q.purge("orders", "available")
    assert BEFORE in (await said(q, message_id))[2]


# -- dead letters ----------------------------------------------------------------------


async def dead(q: Broker) -> int:
    message_id = await publish(q)
    await q.reject(await take(q), "no good")
    return message_id


@law("D1")
async def test_waiting_in_the_dead_letters(q: Broker) -> None:
    message_id = await dead(q)
    assert await said(q, message_id, "orders.dlq") == (State.AVAILABLE, True, *WAITS)


@law("D1")
async def test_a_dead_letter_does_not_expire(q: Broker, clock: FakeClock) -> None:
    message_id = await publish(q, ttl_ms=10)
    await q.reject(await take(q), "no good")
    clock.advance(10)
    assert await said(q, message_id, "orders.dlq") == (State.AVAILABLE, True, *WAITS)


@law("D1")
async def test_held_in_the_dead_letters(q: Broker) -> None:
    message_id = await dead(q)
    await take(q, "orders.dlq", consumer="surgeon", lease_ms=1_000)
    assert await said(q, message_id, "orders.dlq") == (
        State.IN_FLIGHT,
        False,
        "held by 'surgeon' for 1000 ms more",
    )


@law("D1")
async def test_done_in_the_dead_letters(q: Broker, clock: FakeClock) -> None:
    message_id = await dead(q)
    await q.ack(await take(q, "orders.dlq"))
    expected = (State.DONE, False, f"it was acked at {clock.now()}")
    assert await said(q, message_id, "orders.dlq") == expected


@law("D1")
@pytest.mark.parametrize("ending", ["in_flight", "done", "delayed"])
async def test_the_queue_knows_that_it_failed(q: Broker, ending: str) -> None:
    """Whatever happens to the dead letter, the message was not published before the queue."""
    message_id = await dead(q)
    delivery = await take(q, "orders.dlq")
    if ending == "done":
        await q.ack(delivery)
    elif ending == "delayed":
        await q.nack(delivery, delay_ms=50)
    reason = f"it failed, and is {ending} in orders.dlq"
    assert await said(q, message_id) == (None, False, reason)


@law("D1")
@pytest.mark.parametrize("verb", ["release", "reject"])
async def test_back_among_the_dead_letters(q: Broker, verb: str) -> None:
    message_id = await dead(q)
    await getattr(q, verb)(await take(q, "orders.dlq"))
    assert await said(q, message_id, "orders.dlq") == (State.AVAILABLE, True, *WAITS)
    assert (await said(q, message_id))[0] is State.FAILED


@law("D1")
async def test_what_has_not_failed_is_not_among_the_dead_letters(q: Broker) -> None:
    message_id = await publish(q)
    assert await said(q, message_id, "orders.dlq") == (None, False, "it has not failed")
    await q.ack(await take(q))
    assert await said(q, message_id, "orders.dlq") == (None, False, "it has not failed")


@law("D1")
async def test_dead_letters_that_are_paused(q: Broker) -> None:
    message_id = await dead(q)
    await q.pause("orders")
    assert (await said(q, message_id, "orders.dlq"))[1]
    await q.pause("orders.dlq")
    expected = (State.AVAILABLE, False, "the queue is paused")
    assert await said(q, message_id, "orders.dlq") == expected


@law("D1")
async def test_dead_letters_never_run_out_of_attempts(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", max_attempts=1)
    message_id = await dead(q)
    for _ in range(3):
        await take(q, "orders.dlq", lease_ms=100)
        clock.advance(100)
        assert (await said(q, message_id, "orders.dlq"))[:2] == (State.IN_FLIGHT, True)


@law("D1")
async def test_one_that_failed_again_after_it_was_done_there(q: Broker) -> None:
    message_id = await dead(q)
    await q.ack(await take(q, "orders.dlq"))
    await q.replay("orders", "log")
    assert await said(q, message_id) == (State.AVAILABLE, True, *WAITS)
    await q.reject(await take(q))
    assert (await said(q, message_id))[0] is State.FAILED
    assert await said(q, message_id, "orders.dlq") == (State.AVAILABLE, True, *WAITS)


@law("D1")
async def test_dead_letters_of_an_ordered_queue_block_nothing(q: Broker) -> None:
    await q.create_queue("orders", ordering=Ordering.PARTITION)
    ids = [await publish(q, partition_key="k") for _ in range(3)]
    for _ in range(2):
        await q.reject(await take(q, consumer="worker"))
    assert await said(q, ids[2]) == (State.AVAILABLE, True, *WAITS)
    for message_id in ids[:2]:
        assert await said(q, message_id, "orders.dlq") == (State.AVAILABLE, True, *WAITS)
    assert await claimed(q, "orders.dlq") == set(ids[:2])


# -- ordered queues --------------------------------------------------------------------


@pytest.fixture
async def ordered(q: Broker) -> Broker:
    await q.create_queue(
        "orders", "topic = 'orders'", ordering=Ordering.PARTITION, backoff=Backoff(50, 50)
    )
    return q


@law("C4")
@pytest.mark.parametrize(
    "partition_key", [None, "", "k", "it's", 'a"b', "a\\b", "%_", "a\nb", "é--/*", "x" * 512]
)
async def test_blocked_behind_another(ordered: Broker, partition_key: str | None) -> None:
    q = ordered
    first, second, third = [await publish(q, partition_key=partition_key) for _ in range(3)]
    await publish(q, partition_key="another")
    await q.join("orders", "worker")
    partition = partition_key or ""
    assert await said(q, first) == (State.AVAILABLE, True, *WAITS)
    for message_id in (second, third):
        assert await said(q, message_id) == (
            State.AVAILABLE,
            False,
            f"blocked behind message {first} (available) in partition {partition!r}",
        )


async def test_not_blocked_behind_one_that_has_no_attempts_left(ordered: Broker) -> None:
    q = ordered
    first, second = [await publish(q, partition_key="k") for _ in range(2)]
    await q.join("orders", "worker")
    delivery = await take(q, consumer="worker")
    await q.nack(delivery, delay_ms=0)
    await q.update_queue("orders", max_attempts=1)
    assert await said(q, second) == (State.AVAILABLE, True, *WAITS)
    assert (await take(q, consumer="worker")).message.id == second
    assert (await said(q, first))[0] is State.FAILED


@law("C4")
async def test_blocked_in_a_partition_that_no_filter_can_name(ordered: Broker) -> None:
    first, second = [await publish(ordered, partition_key="\x00") for _ in range(2)]
    await ordered.join("orders", "worker")
    assert f"blocked behind message {first} " in (await said(ordered, second))[2]


@law("C4")
async def test_blocked_behind_one_that_is_held_or_waits(ordered: Broker) -> None:
    q = ordered
    first, second = [await publish(q, partition_key="k") for _ in range(2)]
    delivery = await take(q, consumer="worker")
    assert (await said(q, second))[2] == (
        f"blocked behind message {first} (in_flight) in partition 'k'"
    )
    await q.nack(delivery, "later")
    assert (await said(q, second))[2] == (
        f"blocked behind message {first} (delayed) in partition 'k'"
    )
    assert await q.claim("orders", consumer="worker") == []


@law("C4")
async def test_free_when_the_one_before_is_settled(ordered: Broker) -> None:
    q = ordered
    _, second = [await publish(q, partition_key="k") for _ in range(2)]
    await q.ack(await take(q, consumer="worker"))
    assert await said(q, second) == (State.AVAILABLE, True, *WAITS)


@law("C4")
async def test_blocked_behind_one_that_was_replaced(ordered: Broker) -> None:
    """Its offset is a later one, but its place is the old one."""
    q = ordered
    first = await publish(q, key="once", partition_key="k")
    second = await publish(q, partition_key="k")
    assert await publish(q, key="once", partition_key="other") == first
    assert await said(q, first) == (State.AVAILABLE, True, *WAITS)
    assert (await said(q, second))[2] == (
        f"blocked behind message {first} (available) in partition 'k'"
    )
    assert await claimed(q) == {first}


@law("C4")
async def test_blocked_behind_one_that_was_replayed(ordered: Broker) -> None:
    q = ordered
    first, second, third = [await publish(q, partition_key="k") for _ in range(3)]
    for _ in range(2):
        await q.ack(await take(q, consumer="worker"))
    await q.replay("orders", "done")
    assert await deliverable(q, [first, second, third]) == {first}
    assert (await said(q, third))[2] == (
        f"blocked behind message {first} (available) in partition 'k'"
    )
    assert await claimed(q) == {first}


@law("O1")
async def test_nobody_owns_the_partition(ordered: Broker) -> None:
    """The next consumer that claims gets it."""
    message_id = await publish(ordered, partition_key="k")
    assert await said(ordered, message_id) == (State.AVAILABLE, True, *WAITS)
    await ordered.join("orders", "worker")
    assert await said(ordered, message_id) == (State.AVAILABLE, True, *WAITS)
    await ordered.leave("orders", "worker")
    assert await said(ordered, message_id) == (State.AVAILABLE, True, *WAITS)
    assert await claimed(ordered, consumer="another") == {message_id}


@law("C4")
async def test_several_at_once_are_not_blocked_until_the_partition_is_full(q: Broker) -> None:
    await q.create_queue("orders", ordering=Ordering.PARTITION, partition_concurrency=2)
    ids = [await publish(q, partition_key="k") for _ in range(3)]
    elsewhere = await publish(q, partition_key="other")
    await q.join("orders", "worker")
    assert await deliverable(q, ids) == set(ids)
    first = await take(q, consumer="worker")
    assert first.message.id == ids[0]
    assert await deliverable(q, ids) == set(ids[1:])
    second = await take(q, consumer="worker")
    assert second.message.id == ids[1]
    assert await said(q, ids[2]) == (
        State.AVAILABLE,
        False,
        "partition 'k' has 2 in flight already",
    )
    assert (await said(q, elsewhere))[1]
    assert await claimed(q) == {elsewhere}
    await q.ack(second)
    assert await said(q, ids[2]) == (State.AVAILABLE, True, *WAITS)
    assert await claimed(q) == {ids[2]}


@law("C4")
async def test_a_batch_blocks_what_is_behind_it(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", ordering=Ordering.PARTITION, partition_batch=2)
    delays = (None, None, None, 100, None)
    ids = [await publish(q, partition_key="k", delay_ms=delay_ms) for delay_ms in delays]
    assert await deliverable(q, ids) == set(ids[:2])
    assert await claimed(q) == set(ids[:2])
    assert await deliverable(q, ids) == set()
    clock.advance(50)
    await q.purge("orders", "available", ids=ids[:3])
    for delivery in (await q.peek("orders", "in_flight")).items:
        await q.cancel(delivery.message.id)
    blocked = f"blocked behind message {ids[3]} (delayed) in partition 'k'"
    assert await said(q, ids[4]) == (State.AVAILABLE, False, blocked)
    clock.advance(50)
    assert await deliverable(q, ids[3:]) == set(ids[3:])
    assert await claimed(q) == set(ids[3:])


@law("C4")
async def test_a_lapsed_one_does_not_stand_in_its_own_way(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", ordering=Ordering.PARTITION, partition_concurrency=2)
    ids = [await publish(q, partition_key="k") for _ in range(2)]
    await q.claim("orders", limit=2, consumer="worker", lease_ms=100)
    clock.advance(100)
    assert await deliverable(q, ids) == set(ids)
    assert await claimed(q) == set(ids)


@law("C4")
async def test_several_at_once_flow_past_a_delayed_one(q: Broker) -> None:
    await q.create_queue("orders", ordering=Ordering.PARTITION, partition_concurrency=2)
    ids = [await publish(q, partition_key="k", delay_ms=delay_ms) for delay_ms in (100, None)]
    assert await deliverable(q, ids) == {ids[1]}
    assert await claimed(q) == {ids[1]}


@law("C4")
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("how", ["expired", "out of attempts"])
async def test_not_blocked_behind_what_the_next_claim_ends(
    q: Broker, clock: FakeClock, how: str, concurrency: int
) -> None:
    """Time takes effect at the claim, before it looks for what it may hand out."""
    await q.create_queue(
        "orders",
        ordering=Ordering.PARTITION,
        partition_concurrency=concurrency,
        max_attempts=1 if how == "out of attempts" else 5,
    )
    ttl_ms = 100 if how == "expired" else None
    for _ in range(concurrency):
        await publish(q, partition_key="k", ttl_ms=ttl_ms)
    if how == "out of attempts" or concurrency > 1:
        await q.claim("orders", limit=concurrency, consumer="worker", lease_ms=100)
    last = await publish(q, partition_key="k")
    clock.advance(100)
    expected = await deliverable(q, [last])
    assert await claimed(q) == expected


# -- deliverable means what it says ----------------------------------------------------


async def deliverable(q: Broker, ids: list[int], queue: str = "orders") -> set[int]:
    return {n for n in ids if (await q.explain(queue, n)).deliverable}


async def claimed(q: Broker, queue: str = "orders", consumer: str = "worker") -> set[int]:
    deliveries = await q.claim(queue, limit=1000, consumer=consumer)
    return {item.message.id for item in deliveries}


async def mix(q: Broker, clock: FakeClock, random: Random) -> list[int]:
    """Messages in every state, by random verbs; time has taken effect in the end."""
    await q.create_queue("orders", "topic = 'orders' AND wanted", max_attempts=2)
    ids: list[int] = []
    for _ in range(12):
        batch = [
            NewMessage(
                b"",
                headers={"wanted": random.random() < 0.8},
                priority=random.randrange(10),
                delay_ms=random.choice([None, None, 300, 3_000]),
                ttl_ms=random.choice([None, None, 400, 4_000]),
            )
            for _ in range(4)
        ]
        ids += [item.id for item in (await q.publish_batch("orders", batch)).messages]
        for delivery in await q.claim("orders", limit=3, lease_ms=random.choice([200, 60_000])):
            verb = random.choice([q.ack, q.nack, q.reject, q.release, None])
            if verb is not None:
                await verb(delivery)
        clock.advance(random.choice([0, 50, 150]))
    await q.sweep()
    return ids


@pytest.mark.parametrize("seed", range(8))
async def test_deliverable_is_what_a_claim_gets(q: Broker, clock: FakeClock, seed: int) -> None:
    ids = await mix(q, clock, Random(seed))
    expected = await deliverable(q, ids)
    assert expected
    assert len(expected) < len(ids)
    assert await claimed(q) == expected


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_of_a_paused_queue_is_deliverable(
    q: Broker, clock: FakeClock, seed: int
) -> None:
    ids = await mix(q, clock, Random(seed))
    await q.pause("orders")
    assert await deliverable(q, ids) == await claimed(q) == set()


@pytest.mark.parametrize("what", ["due", "lapsed"])
async def test_deliverable_is_what_a_claim_gets_when_time_has_passed(
    q: Broker, clock: FakeClock, what: str
) -> None:
    """Time takes effect at the claim, so what is due or lapsed will be handed out by it."""
    if what == "due":
        message_id = await publish(q, delay_ms=100)
    else:
        message_id = await publish(q)
        await take(q, lease_ms=100)
    clock.advance(100)
    expected = await deliverable(q, [message_id])
    assert await claimed(q) == expected


async def test_deliverable_is_what_a_claim_gets_when_some_grants_were_released(
    q: Broker, clock: FakeClock
) -> None:
    """Those do not count against max_attempts."""
    await q.create_queue("orders", max_attempts=2)
    message_id = await publish(q)
    for _ in range(2):
        await q.release(await take(q))
    await take(q, lease_ms=100)
    clock.advance(100)
    expected = await deliverable(q, [message_id])
    assert await claimed(q) == expected


async def test_a_lapsed_one_without_attempts_left_is_not_deliverable(
    q: Broker, clock: FakeClock
) -> None:
    await q.create_queue("orders", max_attempts=1)
    message_id = await publish(q)
    await take(q, lease_ms=100)
    clock.advance(100)
    assert await deliverable(q, [message_id]) == set()
    assert await claimed(q) == set()


@pytest.mark.parametrize("seed", range(8))
async def test_deliverable_is_what_a_claim_gets_in_order(
    q: Broker, clock: FakeClock, seed: int
) -> None:
    random = Random(seed)
    await q.create_queue("orders", ordering=Ordering.PARTITION)
    ids: list[int] = []
    for _ in range(10):
        for _ in range(3):
            delay_ms = 5_000 if random.random() < 0.1 else None
            key = random.choice([None, *"abcdefgh"])
            ids.append(
                await publish(
                    q, partition_key=key, delay_ms=delay_ms, priority=random.randrange(10)
                )
            )
        for delivery in await q.claim("orders", limit=2, consumer="worker", lease_ms=60_000):
            verbs: list[Any] = [q.ack, q.ack, q.nack, q.release]
            await random.choice(verbs)(delivery)
        clock.advance(random.choice([0, 400]))
    await q.sweep()
    await q.join("orders", "worker")
    expected = await deliverable(q, ids)
    assert expected
    assert await claimed(q) == expected
