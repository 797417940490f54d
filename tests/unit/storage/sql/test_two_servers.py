"""What one of two servers changes in the catalog holds for the very next call on the other (R1).

Queues made, changed, deleted, paused; policies of topics; on both dialects, without a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker import Broker, BrokerOptions
from penstock.errors import QueueFull, UnknownQueue
from penstock.model.delivery import Ack, Nack, ReplaySource
from penstock.model.message import NewMessage, Outgoing
from penstock.model.queue import Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine
from penstock.testing.laws import law
from tests.unit.storage.sql.pairs import (
    LATEST,
    ROUNDS,
    TENANT,
    Pair,
    claim,
    payloads,
    publish,
    settled,
)

# -- queues (R1) -------------------------------------------------------------------------


@law("R1")
async def test_a_new_queue_gets_the_next_publish(pair: Pair) -> None:
    await pair.a.put_queue(TENANT, "new", QueuePolicy(filter="topic = 'old'"), LATEST)
    await publish(pair.b, "old", b"1")
    assert payloads(await claim(pair.a, "new")) == [b"1"]
    assert [info.name for info in await pair.b.list_queues(TENANT)] == ["new", "old"]


@law("R1")
async def test_a_changed_filter_holds_for_the_next_publish(pair: Pair) -> None:
    await pair.a.put_queue(TENANT, "old", QueuePolicy(filter="topic = 'other'"), LATEST)
    await publish(pair.b, "other", b"1")
    await publish(pair.b, "old", b"2")
    # What was routed stays, and "old" is nobody's any more: its name is taken.
    assert payloads(await claim(pair.b, "old")) == [b"0", b"1"]


@law("R1")
async def test_a_deleted_queue_gets_nothing_and_gives_nothing(pair: Pair) -> None:
    held = await claim(pair.b, "old")
    await pair.a.delete_queue(TENANT, "old")
    with pytest.raises(UnknownQueue):
        await claim(pair.b, "old")
    with pytest.raises(UnknownQueue):
        await settled(pair.b, "old", Ack(held[0].receipt))
    # A queue is made for the topic: not the one that was deleted.
    await publish(pair.b, "old", b"1")
    assert payloads(await claim(pair.a, "old")) == [b"1"]
    assert await settled(pair.a, "old", Ack(held[0].receipt)) == ["stale"]
    await pair.a.sweep()
    stats = await pair.a.stats(TENANT, "old")
    assert (stats.in_flight, stats.depth, stats.done) == (1, 1, 0)


@law("E1")
@pytest.mark.parametrize("ordering", list(Ordering))
async def test_no_verb_knows_a_queue_that_another_server_deleted(
    pair: Pair, ordering: Ordering
) -> None:
    a, name = pair.a, "gone"
    receipt = (await claim(a, "old"))[0].receipt
    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: a.get_queue(TENANT, name),
        lambda: a.delete_queue(TENANT, name),
        lambda: a.pause(TENANT, name, True),
        lambda: claim(a, name),
        lambda: settled(a, name, Ack(receipt)),
        lambda: a.settle(TENANT, name, [Ack(receipt)], [Outgoing("old", [NewMessage(b"x")])]),
        lambda: a.route(TENANT, name, 10),
        lambda: a.join(TENANT, name, "c"),
        lambda: a.leave(TENANT, name, "c"),
        lambda: a.replay(TENANT, name, ReplaySource.LOG, None, 10),
        lambda: a.replay(TENANT, name, ReplaySource.FAILED, None, 10),
        lambda: a.purge(TENANT, name, State.AVAILABLE, None, 10),
        lambda: a.peek(TENANT, name, State.AVAILABLE, None, 10),
        lambda: a.stats(TENANT, name),
        lambda: a.next_due(TENANT, name),
    ]
    for verb in verbs:
        policy = QueuePolicy(ordering=ordering)
        await pair.b.put_queue(TENANT, name, policy, Start(at=Start.EARLIEST))
        # It knows the queue, and does not know that it is gone.
        await a.list_queues(TENANT)
        await pair.b.delete_queue(TENANT, name)
        with pytest.raises(UnknownQueue):
            await verb()
    assert [info.name for info in await a.list_queues(TENANT)] == ["old"]


@law("R1")
async def test_a_queue_that_was_deleted_and_made_again_is_another(pair: Pair) -> None:
    await claim(pair.b, "old")
    await pair.a.delete_queue(TENANT, "old")
    await pair.a.put_queue(TENANT, "old", QueuePolicy(filter="topic = 'old'"), LATEST)
    assert await claim(pair.b, "old") == []
    await publish(pair.b, "old", b"1")
    assert payloads(await claim(pair.b, "old")) == [b"1"]


async def test_pause_and_resume_hold_everywhere(pair: Pair) -> None:
    await pair.a.pause(TENANT, "old", True)
    assert await claim(pair.b, "old") == []
    await pair.b.pause(TENANT, "old", False)
    assert payloads(await claim(pair.a, "old")) == [b"0"]


@law("C2")
async def test_changed_max_attempts_hold_everywhere(pair: Pair) -> None:
    (held,) = await claim(pair.b, "old")
    policy = QueuePolicy(filter="topic = 'old'", max_attempts=1)
    await pair.a.put_queue(TENANT, "old", policy, LATEST)
    assert await settled(pair.b, "old", Nack(held.receipt, delay_ms=0)) == ["ok"]
    assert (await pair.b.stats(TENANT, "old")).failed == 1
    assert payloads(await claim(pair.a, "old.dlq")) == [b"0"]


async def test_a_changed_max_depth_holds_for_the_next_publish(pair: Pair) -> None:
    policy = QueuePolicy(filter="topic = 'old'", max_depth=1)
    await pair.a.put_queue(TENANT, "old", policy, LATEST)
    with pytest.raises(QueueFull):
        await publish(pair.b, "old", b"1")
    await pair.a.put_queue(TENANT, "old", QueuePolicy(filter="topic = 'old'"), LATEST)
    await publish(pair.b, "old", b"1")


async def test_a_changed_ordering_holds_for_the_next_claim(pair: Pair) -> None:
    (held,) = await claim(pair.b, "old")
    await settled(pair.b, "old", Ack(held.receipt))
    policy = QueuePolicy(filter="topic = 'old'", ordering=Ordering.PARTITION)
    await pair.a.put_queue(TENANT, "old", policy, LATEST)
    message = [NewMessage(b"1", partition_key="x"), NewMessage(b"2", partition_key="x")]
    await pair.b.publish(TENANT, "old", message)
    assert payloads(await claim(pair.b, "old", consumer="one")) == [b"1"]
    assert await claim(pair.a, "old", consumer="two") == []


@law("R1")
async def test_an_automatic_queue_is_there_once(pair: Pair) -> None:
    for number in range(ROUNDS):
        topic = f"topic-{number}"
        await asyncio.gather(*(publish(one, topic, b"x") for one in (pair.a, pair.b, pair.a)))
        names = [info.name for info in await pair.b.list_queues(TENANT)]
        assert names.count(topic) == 1
        assert len(await claim(pair.a, topic)) == 3


@law("R1")
async def test_a_queue_that_two_put_at_once_is_there_once(pair: Pair) -> None:
    for number in range(ROUNDS):
        name = f"queue-{number}"
        policy = QueuePolicy(filter=f"topic = '{name}'")
        await asyncio.gather(
            *(one.put_queue(TENANT, name, policy, LATEST) for one in (pair.a, pair.b))
        )
        await publish(pair.b, name, b"x")
        assert payloads(await claim(pair.a, name)) == [b"x"]


@law("R1")
async def test_a_queue_gets_what_is_published_after_it_whatever_else_is(pair: Pair) -> None:
    made: list[tuple[str, int]] = []

    async def keep_publishing(engine: Engine) -> None:
        for number in range(3 * ROUNDS):
            await publish(engine, "old", b"%d" % number)

    async def keep_changing() -> None:
        for number in range(ROUNDS):
            await pair.a.put_queue(TENANT, f"n{number}", QueuePolicy(), LATEST)
            (after,) = await publish(pair.b, "old", b"after")
            made.append((f"n{number}", after))

    await asyncio.gather(keep_publishing(pair.a), keep_publishing(pair.b), keep_changing())
    for queue, after in made:
        got = [int(delivery.message.id) for delivery in await claim(pair.b, queue, 1_000)]
        assert got.count(after) == 1


async def test_two_servers_change_different_fields_of_one_queue(pair: Pair) -> None:
    brokers = [Broker(engine, BrokerOptions(), TENANT) for engine in (pair.a, pair.b)]
    for number in range(1, ROUNDS + 1):
        await asyncio.gather(
            brokers[0].update_queue("old", max_attempts=number),
            brokers[1].update_queue("old", description=str(number)),
            pair.a.pause(TENANT, "old", number % 2 == 0),
        )
        policy = (await pair.a.get_queue(TENANT, "old")).policy
        found = (policy.max_attempts, policy.description, policy.paused)
        assert found == (number, str(number), number % 2 == 0)


# -- topics ------------------------------------------------------------------------------


@law("P4")
async def test_a_changed_dedup_window_holds_for_the_next_publish(pair: Pair) -> None:
    message = [NewMessage(b"x", id="once")]
    (first,) = (await pair.a.publish(TENANT, "old", message)).messages
    (again,) = (await pair.b.publish(TENANT, "old", message)).messages
    assert (again.id, again.duplicate) == (first.id, True)
    await pair.a.put_topic(TENANT, "old", TopicPolicy(dedup_window_ms=0))
    (third,) = (await pair.b.publish(TENANT, "old", message)).messages
    assert (third.duplicate, third.id > first.id) == (False, True)
    await pair.b.delete_topic(TENANT, "old")
    assert await pair.a.get_topic(TENANT, "old") is None


@law("C3")
async def test_a_changed_ttl_holds_for_the_next_publish(pair: Pair) -> None:
    await pair.a.put_topic(TENANT, "old", TopicPolicy(default_ttl_ms=1_000))
    await publish(pair.b, "old", b"1")
    pair.clock.advance(1_000)
    assert payloads(await claim(pair.a, "old")) == [b"0"]
    assert (await pair.b.stats(TENANT, "old")).expired == 1
