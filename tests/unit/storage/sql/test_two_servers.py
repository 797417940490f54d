"""Two servers on one database behave as one store: R1, P4, C1, S1, C2, on both dialects.

Whatever one of them changes holds for the very next call on the other, without a pause. The
servers go by clocks that only the tests move.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from penstock.errors import QueueFull, UnknownQueue
from penstock.model.delivery import Ack, Delivery, Nack, Receipt, Reject, Release, ReplaySource
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from tests.databases import store_url
from tests.unit.storage.sql.callers import DIALECTS, caller

TENANT = "t"
NAME = "servers"
LATEST = Start()
#: How often what may or may not collide is tried.
ROUNDS = 10


class Pair:
    """The servers, and their clock."""

    def __init__(self, a: Engine, b: Engine, clock: FakeClock) -> None:
        self.a = a
        self.b = b
        self.clock = clock


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def opened(dialect: str, *clocks: FakeClock) -> AsyncIterator[list[Engine]]:
    """A server for each of the clocks, on one empty store."""
    url = store_url(dialect, NAME)
    async with AsyncExitStack() as stack:
        servers = []
        for clock in clocks:
            servers.append(await open_engine(url, EngineOptions(clock=clock)))
            stack.push_async_callback(servers[-1].close)
        yield servers


@pytest.fixture
async def pair(dialect: str) -> AsyncIterator[Pair]:
    clock = FakeClock()
    async with opened(dialect, clock, clock) as (a, b):
        # Both have seen the tenant, so what they know of it can be out of date.
        await a.put_queue(TENANT, "old", QueuePolicy(filter="topic = 'old'"), LATEST)
        await b.publish(TENANT, "old", [NewMessage(b"0")])
        yield Pair(a, b, clock)


async def publish(engine: Engine, topic: str, *payloads: bytes) -> list[int]:
    reply = await engine.publish(TENANT, topic, [NewMessage(payload) for payload in payloads])
    return [int(item.id) for item in reply.messages]


async def claim(
    engine: Engine, queue: str, limit: int = 100, *, lease_ms: int = 60_000, consumer: str = "c"
) -> list[Delivery]:
    return await engine.claim(TENANT, queue, consumer, limit, lease_ms)


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.payload for delivery in deliveries]


async def settled(engine: Engine, queue: str, *items: Ack | Nack | Reject | Release) -> list[str]:
    reply = await engine.settle(TENANT, queue, items)
    return [str(outcome.verdict) for outcome in reply.outcomes]


# -- queues (R1) -------------------------------------------------------------------------


async def test_r1_a_new_queue_gets_the_next_publish(pair: Pair) -> None:
    await pair.a.put_queue(TENANT, "new", QueuePolicy(filter="topic = 'old'"), LATEST)
    await publish(pair.b, "old", b"1")
    assert payloads(await claim(pair.a, "new")) == [b"1"]
    assert [info.name for info in await pair.b.list_queues(TENANT)] == ["new", "old"]


async def test_r1_a_changed_filter_holds_for_the_next_publish(pair: Pair) -> None:
    await pair.a.put_queue(TENANT, "old", QueuePolicy(filter="topic = 'other'"), LATEST)
    await publish(pair.b, "other", b"1")
    await publish(pair.b, "old", b"2")
    # What was routed stays, and "old" is nobody's any more: its name is taken.
    assert payloads(await claim(pair.b, "old")) == [b"0", b"1"]


async def test_r1_a_deleted_queue_gets_nothing_and_gives_nothing(pair: Pair) -> None:
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


async def test_r1_a_queue_that_was_deleted_and_made_again_is_another(pair: Pair) -> None:
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


async def test_c2_changed_max_attempts_hold_everywhere(pair: Pair) -> None:
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


async def test_r1_an_automatic_queue_is_there_once(pair: Pair) -> None:
    for number in range(ROUNDS):
        topic = f"topic-{number}"
        await asyncio.gather(*(publish(one, topic, b"x") for one in (pair.a, pair.b, pair.a)))
        names = [info.name for info in await pair.b.list_queues(TENANT)]
        assert names.count(topic) == 1
        assert len(await claim(pair.a, topic)) == 3


async def test_r1_a_queue_that_two_put_at_once_is_there_once(pair: Pair) -> None:
    for number in range(ROUNDS):
        name = f"queue-{number}"
        policy = QueuePolicy(filter=f"topic = '{name}'")
        await asyncio.gather(
            *(one.put_queue(TENANT, name, policy, LATEST) for one in (pair.a, pair.b))
        )
        await publish(pair.b, name, b"x")
        assert payloads(await claim(pair.a, name)) == [b"x"]


async def test_r1_a_queue_gets_what_is_published_after_it_whatever_else_is(pair: Pair) -> None:
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


# -- topics ------------------------------------------------------------------------------


async def test_p4_a_changed_dedup_window_holds_for_the_next_publish(pair: Pair) -> None:
    message = [NewMessage(b"x", id="once")]
    (first,) = (await pair.a.publish(TENANT, "old", message)).messages
    (again,) = (await pair.b.publish(TENANT, "old", message)).messages
    assert (again.id, again.duplicate) == (first.id, True)
    await pair.a.put_topic(TENANT, "old", TopicPolicy(dedup_window_ms=0))
    (third,) = (await pair.b.publish(TENANT, "old", message)).messages
    assert (third.duplicate, third.id > first.id) == (False, True)
    await pair.b.delete_topic(TENANT, "old")
    assert await pair.a.get_topic(TENANT, "old") is None


async def test_c3_a_changed_ttl_holds_for_the_next_publish(pair: Pair) -> None:
    await pair.a.put_topic(TENANT, "old", TopicPolicy(default_ttl_ms=1_000))
    await publish(pair.b, "old", b"1")
    pair.clock.advance(1_000)
    assert payloads(await claim(pair.a, "old")) == [b"0"]
    assert (await pair.b.stats(TENANT, "old")).expired == 1


# -- publishing (P4) ---------------------------------------------------------------------


async def test_p4_one_id_through_two_servers_is_one_entry(pair: Pair) -> None:
    for number in range(ROUNDS):
        message = [NewMessage(b"x", id=f"id-{number}"), NewMessage(b"y", id=f"jd-{number}")]
        turned = message[::-1]
        replies = await asyncio.gather(
            *(
                one.publish(TENANT, "old", batch)
                for one in (pair.a, pair.b)
                for batch in (message, turned)
            )
        )
        for position, other in ((0, 1), (1, 0)):
            same = [replies[n].messages[position] for n in (0, 2)]
            same += [replies[n].messages[other] for n in (1, 3)]
            assert len({item.id for item in same}) == 1
            assert sum(not item.duplicate for item in same) == 1
    page = await pair.b.read_log(TENANT, Offset(0), 1_000)
    assert len(page.entries) == 1 + 2 * ROUNDS


async def test_p4_one_batch_through_two_servers_is_stored_once(pair: Pair) -> None:
    for number in range(ROUNDS):
        batch = [NewMessage(b"x"), NewMessage(b"y")]
        replies = await asyncio.gather(
            *(
                one.publish(TENANT, "old", batch, batch_id=f"batch-{number}")
                for one in (pair.a, pair.b, pair.a, pair.b)
            )
        )
        assert len({tuple(item.id for item in reply.messages) for reply in replies}) == 1
        assert sum(not reply.repeated for reply in replies) == 1
    page = await pair.b.read_log(TENANT, Offset(0), 1_000)
    assert len(page.entries) == 1 + 2 * ROUNDS


async def test_one_key_through_two_servers_is_one_message(pair: Pair) -> None:
    for number in range(ROUNDS):
        sent = [b"%d" % n for n in range(4)]
        replies = await asyncio.gather(
            *(
                one.publish(TENANT, "old", [NewMessage(payload, key=f"k{number}")])
                for payload, one in zip(sent, (pair.a, pair.b) * 2, strict=True)
            )
        )
        found = [reply.messages[0] for reply in replies]
        assert len({item.id for item in found}) == 1
        assert sum(not item.replaced for item in found) == 1
        newest = max(found, key=lambda item: item.offset)
        message = await pair.a.message(TENANT, newest.id)
        assert message.payload == sent[found.index(newest)]
    held = await claim(pair.b, "old", 1_000)
    assert len(held) == 1 + ROUNDS


async def test_a_key_that_another_server_has_claimed_starts_a_new_message(pair: Pair) -> None:
    for number in range(ROUNDS):
        key = f"k{number}"
        (first,) = (await pair.a.publish(TENANT, "old", [NewMessage(b"1", key=key)])).messages
        claimed, reply = await asyncio.gather(
            claim(pair.b, "old", 1_000),
            pair.a.publish(TENANT, "old", [NewMessage(b"2", key=key)]),
        )
        mine = [item.payload for item in claimed if item.message.id == first.id]
        (second,) = reply.messages
        if second.replaced:
            # It came before the claim, whoever has that now.
            late = [d for d in await claim(pair.b, "old", 1_000) if d.message.id == first.id]
            assert mine + payloads(late) == [b"2"]
        else:
            assert mine == [b"1"]
            assert payloads(await claim(pair.b, "old", 1_000)) == [b"2"]


# -- claims (C1, S1) ---------------------------------------------------------------------


async def test_c1_claims_at_once_share_nothing(pair: Pair) -> None:
    sent = await publish(pair.a, "old", *(b"%d" % n for n in range(300)))
    for part in range(20):
        sent += await publish(pair.b, "old", b"%d" % part)
    got: Counter[int] = Counter()
    receipts: set[str] = set()
    while True:
        claims = await asyncio.gather(
            *(claim(one, "old", limit) for one in (pair.a, pair.b) for limit in (7, 13))
        )
        given = [delivery for part in claims for delivery in part]
        if not given:
            break
        got.update(int(delivery.message.id) for delivery in given)
        receipts |= {delivery.receipt for delivery in given}
    assert set(got) >= set(sent)
    assert set(got.values()) == {1}
    assert len(receipts) == len(got) == (await pair.b.stats(TENANT, "old")).in_flight


async def test_a_claim_of_one_is_settled_by_the_other(pair: Pair) -> None:
    await publish(pair.a, "old", b"1", b"2", b"3")
    held = await claim(pair.a, "old")
    verbs = (Ack(held[0].receipt, b"r"), Nack(held[1].receipt, delay_ms=0))
    assert await settled(pair.b, "old", *verbs, Reject(held[2].receipt, "no")) == ["ok"] * 3
    assert await settled(pair.a, "old", Ack(held[0].receipt), Ack(held[1].receipt)) == [
        "ok",
        "stale",
    ]
    result = await pair.a.result(TENANT, "old", held[0].message.id)
    assert result is not None
    assert result.result == b"r"
    stats = await pair.a.stats(TENANT, "old")
    assert (stats.done, stats.available, stats.failed, stats.in_flight) == (1, 1, 1, 1)


async def test_s1_two_servers_settle_one_receipt_once(pair: Pair) -> None:
    for _ in range(ROUNDS):
        await publish(pair.a, "old", b"1")
        held = await claim(pair.a, "old")
        verdicts = await asyncio.gather(
            settled(pair.a, "old", *(Nack(d.receipt, delay_ms=0) for d in held)),
            settled(pair.b, "old", *(Reject(d.receipt) for d in held)),
        )
        for one, other in zip(*verdicts, strict=True):
            assert {one, other} == {"ok", "stale"}
        stats = await pair.b.stats(TENANT, "old")
        assert stats.in_flight == 0


async def test_s1_a_lapsed_lease_is_handed_out_by_the_other_and_the_old_receipt_is_stale(
    pair: Pair,
) -> None:
    (first,) = await claim(pair.a, "old", lease_ms=1_000)
    pair.clock.advance(999)
    assert await claim(pair.b, "old") == []
    pair.clock.advance(1)
    (second,) = await claim(pair.b, "old", lease_ms=1_000)
    assert second.message.id == first.message.id
    assert second.attempts == 2
    assert await settled(pair.a, "old", Ack(first.receipt)) == ["stale"]
    assert await settled(pair.a, "old", Ack(second.receipt)) == ["ok"]


async def test_c1_receipts_grow_though_one_clock_is_behind(dialect: str) -> None:
    """Servers differ by some milliseconds, and a delivery comes back at once."""
    ahead = FakeClock()
    behind = FakeClock(ahead.now() - 20)
    async with opened(dialect, ahead, behind) as (a, b):
        await publish(a, "q", b"x")
        numbers: list[int] = []

        async def claim_by(engine: Engine) -> Receipt:
            (held,) = await claim(engine, "q")
            numbers.append(int(held.receipt.split("-")[2], 16))
            return held.receipt

        await settled(a, "q", Release(await claim_by(a)))
        await settled(b, "q", Nack(await claim_by(b), delay_ms=0))
        await settled(a, "q", Ack(await claim_by(a)))
        await a.replay(TENANT, "q", ReplaySource.DONE, None, 10)
        await claim_by(b)
        ahead.advance(120_000)
        await a.sweep()
        await claim_by(b)
        assert numbers == sorted(set(numbers))


async def test_c1_a_lease_begins_when_the_wait_for_it_is_over(pair: Pair, dialect: str) -> None:
    """Somebody has the first delivery locked for so long that the last claim would have ended."""
    own = await caller(dialect, NAME)
    try:
        await own.begin()
        await own.run("SELECT place FROM penstock_run FOR UPDATE")
        waiting = asyncio.create_task(claim(pair.a, "old", lease_ms=1_000))
        await asyncio.wait([waiting], timeout=0.3)
        pair.clock.advance(5_000)
        await own.commit()
        (held,) = await waiting
    finally:
        await own.close()
    assert held.claimed_at == pair.clock.now()
    assert held.lease_deadline == pair.clock.now() + 1_000


async def test_q2_what_one_server_does_the_other_counts(pair: Pair) -> None:
    await publish(pair.a, "old", *(b"%d" % n for n in range(10)))
    held = await claim(pair.b, "old", 5)
    await settled(pair.a, "old", *(Ack(d.receipt) for d in held[:2]))
    for one in (pair.a, pair.b):
        stats = await one.stats(TENANT, "old")
        assert (stats.available, stats.in_flight, stats.done) == (6, 3, 2)
        pages = {s: await one.peek(TENANT, "old", s, None, 100) for s in State}
        counts = {state: len(page.items) for state, page in pages.items()}
        assert counts == {state: getattr(stats, state) for state in State}
