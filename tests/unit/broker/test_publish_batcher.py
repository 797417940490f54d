from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import penstock
from penstock import Broker, BrokerOptions, EngineOptions, NewMessage
from penstock.errors import CommitFailed, QueueFull, StoreClosed
from penstock.model.limits import MAX_BATCH, Limits
from penstock.model.message import Durability, Published, PublishReply
from penstock.storage.contract import Engine
from penstock.storage.topic_checks import CheckedBy
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law


class Calls:
    """Counts what reaches the engine, and refuses it on request."""

    def __init__(self, engine: Engine) -> None:
        self.batches: list[tuple[str, list[bytes]]] = []
        self.failure: Exception | None = None
        self._publish = engine.publish
        engine.publish = self.publish  # type: ignore[method-assign]

    async def publish(
        self,
        tenant: str,
        topic: str,
        messages: Sequence[NewMessage],
        durability: Durability = "fsync",
        batch_id: str | None = None,
        batch_ms: int | None = None,
        *,
        checked: CheckedBy = None,
    ) -> PublishReply:
        self.batches.append((topic, [message.payload for message in messages]))
        if self.failure is not None:
            raise self.failure
        return await self._publish(
            tenant, topic, messages, durability, batch_id, batch_ms, checked=checked
        )


@pytest.fixture
async def q() -> AsyncIterator[Broker]:
    options = BrokerOptions(engine=EngineOptions(clock=FakeClock()))
    async with penstock.open("memory://", options=options) as broker:
        yield broker


@pytest.fixture
def calls(q: Broker) -> Calls:
    return Calls(q.engine)


async def test_publishes_of_one_turn_are_one_batch(q: Broker, calls: Calls) -> None:
    replies = await asyncio.gather(*(q.publish("t", b"%d" % n) for n in range(5)))
    assert calls.batches == [("t", [b"0", b"1", b"2", b"3", b"4"])]
    assert [reply.id for reply in replies] == sorted(reply.id for reply in replies)
    payloads = [entry.payload for entry in (await q.read_log(payloads=True)).entries]
    assert payloads == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_lone_publish_waits_for_nobody(q: Broker, calls: Calls) -> None:
    await q.publish("t", b"a")
    await q.publish("t", b"b")
    assert calls.batches == [("t", [b"a"]), ("t", [b"b"])]


async def test_topics_and_durabilities_are_apart(q: Broker, calls: Calls) -> None:
    await asyncio.gather(
        q.publish("t", b"a"),
        q.publish("u", b"b"),
        q.publish("t", b"c", durability="os"),
        q.publish("t", b"d"),
    )
    assert sorted(calls.batches) == [("t", [b"a", b"d"]), ("t", [b"c"]), ("u", [b"b"])]


async def test_a_batch_is_bounded(q: Broker, calls: Calls) -> None:
    await asyncio.gather(*(q.publish("t", b"") for _ in range(MAX_BATCH + 1)))
    assert sorted(len(payloads) for _, payloads in calls.batches) == [1, MAX_BATCH]


@law("P2")
async def test_each_message_is_refused_by_itself(q: Broker) -> None:
    """Two of three fit; nobody is refused for another's sake."""
    await q.create_queue("small", "topic = 't'", max_depth=2)
    replies = await asyncio.gather(
        *(q.publish("t", b"%d" % n) for n in range(3)), return_exceptions=True
    )
    assert [type(reply) for reply in replies[:2]] == [Published] * 2
    assert isinstance(replies[2], QueueFull)
    assert (await q.stats("small")).available == 2


async def test_messages_that_are_too_many_deliveries_together_are_sent_in_parts() -> None:
    engine = EngineOptions(clock=FakeClock(), limits=Limits(publish_deliveries=6))
    async with penstock.open("memory://", options=BrokerOptions(engine=engine)) as q:
        for name in ("a", "b", "c"):
            await q.create_queue(name, "topic = 't'")
        calls = Calls(q.engine)
        await asyncio.gather(*(q.publish("t", b"%d" % n) for n in range(8)))
        sizes = [len(payloads) for _, payloads in calls.batches]
        assert sizes == [8, 4, 2, 2, 4, 2, 2]
        assert (await q.stats("c")).available == 8


@law("P4")
async def test_one_id_twice_in_a_turn_is_one_message(q: Broker) -> None:
    first, second = await asyncio.gather(
        q.publish("t", b"a", id="same"), q.publish("t", b"b", id="same")
    )
    assert (first.id, first.duplicate) == (second.id, False)
    assert second.duplicate
    assert len((await q.read_log()).entries) == 1


async def test_whoever_is_cancelled_before_the_turn_ends_publishes_nothing(
    q: Broker, calls: Calls
) -> None:
    early = asyncio.create_task(q.publish("t", b"early"))
    other = asyncio.create_task(q.publish("t", b"other"))
    asyncio.get_running_loop().call_soon(early.cancel)
    await other
    with pytest.raises(asyncio.CancelledError):
        await early
    assert sum(b"other" in payloads for _, payloads in calls.batches) == 1
    assert len((await q.read_log()).entries) == sum(len(p) for _, p in calls.batches)


async def test_a_store_that_fails_fails_everybody_once(q: Broker, calls: Calls) -> None:
    calls.failure = CommitFailed("disk")
    replies = await asyncio.gather(*(q.publish("t", b"") for _ in range(3)), return_exceptions=True)
    assert [type(reply) for reply in replies] == [CommitFailed] * 3
    assert len(calls.batches) == 1, "the same disk would fail each of them again"


async def test_a_bug_below_reaches_the_caller(q: Broker, calls: Calls) -> None:
    calls.failure = ZeroDivisionError()
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    with pytest.raises(ZeroDivisionError):
        await q.publish("t", b"")


@law("P1")
async def test_closing_waits_for_what_was_begun(q: Broker) -> None:
    publishing = asyncio.create_task(q.publish("t", b"last"))
    await asyncio.sleep(0)
    await q.close()
    assert (await publishing).id == 0
    with pytest.raises(StoreClosed):
        await q.publish("t", b"too late")


@law("T1")
async def test_tenants_are_gathered_apart(q: Broker, calls: Calls) -> None:
    other = q.for_tenant("other")
    await asyncio.gather(q.publish("t", b"mine"), other.publish("t", b"theirs"))
    assert sorted(calls.batches) == [("t", [b"mine"]), ("t", [b"theirs"])]
    assert [e.payload for e in (await q.read_log(payloads=True)).entries] == [b"mine"]
    assert [e.payload for e in (await other.read_log(payloads=True)).entries] == [b"theirs"]


@law("P1")
async def test_closing_waits_for_a_tenant_that_begins_meanwhile(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, drain = q.engine.publish, q._batcher.drain
    draining = asyncio.Event()
    late: list[asyncio.Task[Any]] = []

    async def begin_to_drain() -> None:
        draining.set()
        await drain()

    async def publish(tenant: str, *args: Any, **options: Any) -> Any:
        if tenant == q.tenant:
            await draining.wait()
            late.append(asyncio.create_task(q.for_tenant("late").publish("t", b"late")))
            await asyncio.sleep(0)
        return await store(tenant, *args, **options)

    monkeypatch.setattr(q._batcher, "drain", begin_to_drain)
    monkeypatch.setattr(q.engine, "publish", publish)
    first = asyncio.create_task(q.publish("t", b"first"))
    await asyncio.sleep(0)
    await q.close()
    assert (await first).id != (await late[0]).id
    with pytest.raises(StoreClosed):
        await q.publish("t", b"too late")
