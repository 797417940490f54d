"""Long changes: in slices, whole all the same, and seen by no other verb before they are over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from penstock.errors import PenstockError, QueueFull, StoreClosed, StoreCorrupt
from penstock.model.delivery import Ack, Nack, Settlement
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import EngineOptions, Outgoing
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.moves import assign_many
from penstock.storage.listener import Listener
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

TENANT = "acme"
COUNT = 20
MESSAGES = [NewMessage(b"%d" % number) for number in range(COUNT)]


class Commits(Listener):
    """Counts commits."""

    def __init__(self) -> None:
        self.count = 0

    def committed(self, records: int, seconds: float) -> None:
        del records, seconds
        self.count += 1


@pytest.fixture
async def engine() -> AsyncIterator[KeyValueEngine]:
    """An engine in which every message or settlement is a slice of its own."""
    engine = await KeyValueEngine.open(
        MemoryAdapter(), EngineOptions(clock=FakeClock(1_000)), step_size=1, slice_s=0.0
    )
    for name in ("q", "r"):
        await engine.put_queue(TENANT, name, QueuePolicy(filter="topic = 't'"), Start())
    yield engine
    await engine.close()


async def until_under_way(engine: KeyValueEngine, turns: int = 5) -> None:
    """Let a long change begin, and get on by some turns of the loop."""
    await until(engine, under_way=True)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert engine._changes.under_way


async def until(engine: KeyValueEngine, *, under_way: bool) -> None:
    for _ in range(10_000):
        if engine._changes.under_way == under_way:
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def held(engine: KeyValueEngine) -> list[Settlement]:
    await engine.publish(TENANT, "t", MESSAGES)
    return [Ack(one.receipt) for one in await engine.claim(TENANT, "q", "c", COUNT, None)]


Verb = Callable[[KeyValueEngine], Coroutine[Any, Any, Any]]


async def publish(engine: KeyValueEngine) -> None:
    await engine.publish(TENANT, "t", MESSAGES)


async def settle(engine: KeyValueEngine) -> None:
    await engine.settle(TENANT, "q", await held(engine))


async def settle_and_publish(engine: KeyValueEngine) -> None:
    await engine.settle(TENANT, "q", await held(engine), [Outgoing("t", MESSAGES)])


async def assign(engine: KeyValueEngine) -> None:
    await engine.publish(TENANT, "t", MESSAGES)
    await engine.put_queue(TENANT, "late", QueuePolicy(filter="topic = 't'"), Start("earliest"))
    page = await engine.read_log(TENANT, Offset(0), COUNT)
    await engine.assign(
        TENANT,
        "late",
        filter="topic = 't'",
        start=Offset(0),
        end=page.next_offset,
        offsets=[entry.message.offset for entry in page.entries],
    )


@pytest.mark.parametrize("verb", [publish, settle, settle_and_publish, assign])
async def test_a_large_call_lets_the_loop_do_other_work(engine: KeyValueEngine, verb: Verb) -> None:
    call = asyncio.ensure_future(verb(engine))
    turns = 0
    while not call.done():
        await asyncio.sleep(0)
        turns += engine._changes.under_way
    await call
    assert turns >= COUNT - 1


async def test_a_small_call_takes_effect_at_once(engine: KeyValueEngine) -> None:
    await engine.delete_queue(TENANT, "r")
    publishing = engine.publish(TENANT, "t", MESSAGES[:1])
    publishing.send(None)  # Up to where it waits for the commit.
    assert not engine._changes.under_way
    assert engine._core.log.tenant(TENANT).end > 0
    publishing.close()


async def test_other_verbs_see_all_of_it(engine: KeyValueEngine) -> None:
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES))
    await until_under_way(engine)
    claiming = asyncio.ensure_future(engine.claim(TENANT, "q", "c", COUNT, None))
    second = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES[:1]))
    stats = await engine.stats(TENANT, "r")
    assert stats.available >= COUNT
    assert [one.payload for one in await claiming] == [new.payload for new in MESSAGES]
    first, last = await publishing, await second
    offsets = [one.offset for one in (*first.messages, *last.messages)]
    assert offsets == sorted(set(offsets))


@law("P1", "S3")
async def test_a_publish_waits_while_a_commit_is_encoded(engine: KeyValueEngine) -> None:
    """A publish that entered after the log was encoded was acknowledged but not stored."""
    first = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES[:1]))
    for _ in range(COUNT):
        if not engine._committer._waiting:
            await asyncio.sleep(0)
    # Ready to run before the callback that encodes the rest of the commit.
    second = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES[1:2]))
    end = engine._core.log.tenant(TENANT).end
    engine._committer._begin()
    encoding = 0
    while engine._changes.under_way:
        encoding += 1
        assert engine._core.log.tenant(TENANT).end == end
        await asyncio.sleep(0)
    assert encoding
    await asyncio.gather(first, second)
    page = await engine.read_log(TENANT, Offset(0), COUNT)
    assert [entry.message.id for entry in page.entries] == [
        reply.messages[0].id for reply in (first.result(), second.result())
    ]


async def test_nothing_is_committed_in_the_middle(engine: KeyValueEngine) -> None:
    commits = engine.listener = Commits()
    # Something else is staged, and its commit is due while the publish goes on.
    pausing = asyncio.ensure_future(engine.pause(TENANT, "r", True))
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES))
    await until_under_way(engine)
    seen = 0
    while engine._changes.under_way:
        seen = commits.count
        await asyncio.sleep(0)
    assert seen == 0
    await asyncio.gather(pausing, publishing)
    assert commits.count >= 1


async def test_a_cancelled_call_is_carried_out_whole(engine: KeyValueEngine) -> None:
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES))
    await until_under_way(engine)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    for name in ("q", "r"):
        assert (await engine.stats(TENANT, name)).available == COUNT


async def test_a_claim_that_is_cancelled_while_it_copies_dead_letters_is_released(
    engine: KeyValueEngine,
) -> None:
    policy = QueuePolicy(filter="topic = 't'", max_attempts=1, dead_letter_topic="dead")
    await engine.put_queue(TENANT, "q", policy, Start())
    await engine.publish(TENANT, "t", MESSAGES)
    await engine.claim(TENANT, "q", "c", COUNT - 1, None)
    assert isinstance(engine.clock, FakeClock)
    engine.clock.advance(policy.lease_ms)
    claiming = asyncio.ensure_future(engine.claim(TENANT, "q", "c", COUNT, None))
    await until_under_way(engine)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await engine._abandoned.close()
    stats = await engine.stats(TENANT, "q")
    assert (stats.failed, stats.available, stats.in_flight) == (COUNT - 1, 1, 0)


async def test_a_refused_call_changes_nothing(engine: KeyValueEngine) -> None:
    policy = QueuePolicy(filter="topic = 't'", max_depth=COUNT - 1)
    await engine.put_queue(TENANT, "r", policy, Start())
    with pytest.raises(QueueFull):
        await engine.publish(TENANT, "t", MESSAGES)
    assert not engine._changes.under_way
    assert (await engine.stats(TENANT, "q")).available == 0


async def test_a_call_that_breaks_half_way_ends_the_store(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [COUNT]

    def broken(*args: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise PenstockError("a typed error is no better, half way")
        assign_many(*args)

    monkeypatch.setattr("penstock.storage.keyvalue.publish.assign_many", broken)
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES))
    await until_under_way(engine)
    waiting = asyncio.ensure_future(engine.claim(TENANT, "q", "c", COUNT, None))
    with pytest.raises(PenstockError):
        await publishing
    with pytest.raises(StoreCorrupt):
        await waiting
    engine._committer._failure = None  # For the fixture, which closes it.


async def test_the_caller_may_go_on_using_its_lists(engine: KeyValueEngine) -> None:
    headers: dict[str, Any] = {"n": 1}
    lists = [[NewMessage(b"x", headers)] * COUNT for _ in range(2)]
    calls = [asyncio.ensure_future(engine.publish(TENANT, "t", batch)) for batch in lists]
    await until_under_way(engine)
    headers["n"] = 2
    for batch in lists:
        batch.clear()
    for call in calls:
        assert len((await call).messages) == COUNT
    page = await engine.read_log(TENANT, Offset(0), 3 * COUNT)
    assert [entry.message.headers for entry in page.entries] == [{"n": 1}] * 2 * COUNT


async def test_settlements_may_be_used_on(engine: KeyValueEngine) -> None:
    settlements = await held(engine)
    settling = asyncio.ensure_future(engine.settle(TENANT, "q", settlements))
    await until_under_way(engine)
    settlements[:] = [Nack(one.receipt) for one in settlements]
    assert all(outcome.ok for outcome in (await settling).outcomes)
    assert (await engine.stats(TENANT, "q")).done == COUNT


async def test_closing_waits_for_it(engine: KeyValueEngine) -> None:
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES))
    await until_under_way(engine)
    waiting = asyncio.ensure_future(engine.claim(TENANT, "q", "c", COUNT, None))
    await engine.close()
    assert len((await publishing).messages) == COUNT
    with pytest.raises(StoreClosed):
        await waiting


async def test_a_large_commit_is_encoded_in_slices(engine: KeyValueEngine) -> None:
    names = [f"wide-{number}" for number in range(100)]
    for name in names:
        await engine.put_queue(TENANT, name, QueuePolicy(filter="topic = 'wide'"), Start())
    publishing = asyncio.ensure_future(engine.publish(TENANT, "wide", MESSAGES[:1]))
    await until_under_way(engine)
    await until(engine, under_way=False)  # The publish is applied …
    await until(engine, under_way=True)  # … and now it is encoded.
    claiming = asyncio.ensure_future(engine.claim(TENANT, names[0], "c", 1, None))
    await publishing
    assert len(await claiming) == 1
    assert (await engine.stats(TENANT, names[0])).in_flight == 1
    for name in names[1:]:
        assert (await engine.stats(TENANT, name)).available == 1


@law("S3")
@pytest.mark.parametrize("before", range(1, 6))
async def test_a_settle_publishes_to_several_topics_where_a_segment_ends(
    engine: KeyValueEngine, before: int
) -> None:
    """The second topic began a segment, and entries of the first were written to it too."""
    engine._core.log._segment_entries = 4
    await engine.publish(TENANT, "t", MESSAGES[:before])
    (delivery,) = await engine.claim(TENANT, "q", "c", 1, None)
    publish = [Outgoing("t", MESSAGES[:2]), Outgoing("u", MESSAGES[2:3])]
    reply = await engine.settle(TENANT, "q", [Ack(delivery.receipt)], publish)
    page = await engine.read_log(TENANT, Offset(0), COUNT, payloads=True)
    assert [entry.payload for entry in page.entries[before:]] == [b"0", b"1", b"2"]
    assert [entry.message.id for entry in page.entries[before:]] == [
        published.id for published in reply.published
    ]
    await engine.publish(TENANT, "t", MESSAGES[:1])


async def test_encoding_goes_on_whatever_is_cancelled(engine: KeyValueEngine) -> None:
    """A loop that ends cancels all tasks, also one that has not run yet."""
    publishing = asyncio.ensure_future(engine.publish(TENANT, "t", MESSAGES[:1]))
    for _ in range(COUNT):
        if not engine._committer._waiting:
            await asyncio.sleep(0)
    others = asyncio.all_tasks()
    engine._committer._begin()
    assert engine._changes.under_way
    for task in asyncio.all_tasks() - others:
        task.cancel()
    await until(engine, under_way=False)
    assert (await publishing).messages
