"""Slices of messages whose headers are at their limit, and of messages that go to many queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any

import pytest

from penstock.model.delivery import Ack, ReplaySource
from penstock.model.limits import MAX_HEADERS
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue import metadata
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.log_pairs import _ENTRY_BYTES
from penstock.storage.keyvalue.moves import drop_available
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.stage import STEP_BYTES, Stage
from penstock.testing.clock import FakeClock

T, Q = "t", "q"
HOUR = 3600 * 1000
COUNT = 300
HEAVY = [
    NewMessage(b"%d" % number, {f"header-{name:02}": "v" * 245 for name in range(MAX_HEADERS)})
    for number in range(COUNT)
]
#: As many headers as one slice may decode or encode; a message more may begin it.
MOST_HEADERS = 5_000


@pytest.fixture
def adapter() -> MemoryAdapter:
    return MemoryAdapter()


async def opened(adapter: MemoryAdapter, slice_s: float = 0.0) -> KeyValueEngine:
    return await KeyValueEngine.open(
        adapter, EngineOptions(clock=FakeClock(1_000)), slice_s=slice_s
    )


@pytest.fixture
async def engine(adapter: MemoryAdapter) -> AsyncIterator[KeyValueEngine]:
    """An engine in which every step of a long change is a slice of its own."""
    engine = await opened(adapter)
    await engine.put_queue(T, Q, QueuePolicy(filter="topic = 'q'"), Start())
    yield engine
    await engine.close()


class Headers:
    """Counts the headers that are encoded and decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        decode, encode = metadata._decode_headers, metadata._encode_headers

        def decoding(encoded: bytes, position: int, count: int) -> Any:
            self.count += count
            return decode(encoded, position, count)

        def encoding(headers: dict[str, Any], parts: list[bytes]) -> None:
            self.count += len(headers)
            encode(headers, parts)

        monkeypatch.setattr(metadata, "_decode_headers", decoding)
        monkeypatch.setattr(metadata, "_encode_headers", encoding)

    async def most_a_turn(self, verb: Coroutine[Any, Any, object]) -> int:
        """Run a verb; returns the most headers that it processed between two awaits."""
        most = 0
        counter = self

        class Turns:
            def __await__(self) -> Generator[Any, Any, None]:
                nonlocal most
                while True:
                    before = counter.count
                    try:
                        waits_for = verb.send(None)
                    except StopIteration:
                        return
                    finally:
                        most = max(most, counter.count - before)
                    yield waits_for

        await Turns()
        return most


@pytest.fixture
def headers(monkeypatch: pytest.MonkeyPatch) -> Headers:
    return Headers(monkeypatch)


async def test_publishing_is_sliced_by_headers(engine: KeyValueEngine, headers: Headers) -> None:
    most = await headers.most_a_turn(engine.publish(T, Q, HEAVY))
    assert headers.count == COUNT * MAX_HEADERS
    assert most <= MOST_HEADERS


async def test_a_log_entry_is_bounded_in_bytes(
    engine: KeyValueEngine, adapter: MemoryAdapter
) -> None:
    await engine.publish(T, Q, HEAVY)
    prefix = engine._core.log.tenant(T).keys.prefix(1)
    sizes = [len(value) for _, value in adapter.scan(prefix, prefix + b"\xff")]
    assert sum(sizes) > COUNT * 16_000
    assert max(sizes) <= _ENTRY_BYTES + 1_000 * len(sizes)
    page = await engine.read_log(T, Offset(0), COUNT)
    assert [entry.message.offset for entry in page.entries] == [*range(COUNT)]
    assert page.entries[-1].message.headers == HEAVY[-1].headers


async def test_a_commit_is_encoded_in_steps_of_some_bytes(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    encode = Stage.encode

    def stepping(stage: Stage) -> Generator[None, None, None]:
        def size() -> int:
            return sum(len(value or b"") for value in stage.writes.values())

        before = size()
        for _ in encode(stage):
            sizes.append(size() - before)
            before = size()
            yield
        sizes.append(size() - before)

    monkeypatch.setattr(Stage, "encode", stepping)
    await engine.publish(T, Q, HEAVY)
    assert sum(sizes) > 2 * COUNT * 16_000
    # A step ends with the object that exceeds its bytes: at most a bucket of 100 messages.
    assert max(sizes) <= STEP_BYTES + 100 * 17_000


@pytest.mark.parametrize("verb", ["read_log", "peek", "peek_done", "claim", "replay", "route"])
async def test_reading_is_sliced_by_headers(
    adapter: MemoryAdapter, headers: Headers, verb: str
) -> None:
    engine = await opened(adapter)
    await engine.put_queue(T, Q, QueuePolicy(filter="topic = 'q'"), Start())
    await engine.publish(T, Q, HEAVY)
    if verb in ("peek_done", "replay"):
        held = await engine.claim(T, Q, "c", COUNT, HOUR)
        await engine.settle(T, Q, [Ack(item.receipt) for item in held])
    await engine.close()
    engine = await opened(adapter)
    await engine.put_queue(T, "late", QueuePolicy(filter="topic = 'q'"), Start("earliest"))
    calls: dict[str, Coroutine[Any, Any, object]] = {
        "read_log": engine.read_log(T, Offset(0), COUNT),
        "peek": engine.peek(T, Q, State.AVAILABLE, None, COUNT),
        "peek_done": engine.peek(T, Q, State.DONE, None, COUNT),
        "claim": engine.claim(T, Q, "c", COUNT, HOUR),
        "replay": engine.replay(T, Q, ReplaySource.DONE, None, COUNT),
        "route": engine.route(T, "late", COUNT),
    }
    headers.count = 0
    call = calls.pop(verb)
    for other in calls.values():
        other.close()
    assert await headers.most_a_turn(call) <= MOST_HEADERS
    assert headers.count >= COUNT * MAX_HEADERS
    await engine.close()


async def test_a_claim_that_decodes_in_turns_hands_out_everything_in_order(
    adapter: MemoryAdapter,
) -> None:
    engine = await opened(adapter)
    await engine.put_queue(T, Q, QueuePolicy(filter="topic = 'q'"), Start())
    await engine.publish(T, Q, HEAVY)
    await engine.close()
    engine = await opened(adapter)
    held = await engine.claim(T, Q, "c", COUNT, HOUR)
    assert [item.payload for item in held] == [message.payload for message in HEAVY]
    assert (await engine.stats(T, Q)).in_flight == COUNT
    await engine.close()


# -- many queues ---------------------------------------------------------------------------

QUEUES = 600


@pytest.fixture
async def wide(engine: KeyValueEngine) -> KeyValueEngine:
    for number in range(QUEUES):
        policy = QueuePolicy(filter="topic = 'wide'")
        await engine.put_queue(T, f"wide-{number:03}", policy, Start())
    return engine


async def test_a_keyed_replacement_in_many_queues_is_planned_in_steps(
    wide: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wide.publish(T, "wide", [NewMessage(b"1", key="k")])
    found = 0
    due_of = Queue.due_of

    def counting(queue: Queue, claim_id: int) -> int | None:
        nonlocal found
        found += 1
        return due_of(queue, claim_id)

    monkeypatch.setattr(Queue, "due_of", counting)
    publishing = asyncio.ensure_future(wide.publish(T, "wide", [NewMessage(b"2", key="k")]))
    most = last = 0
    while not publishing.done():
        await asyncio.sleep(0)
        most, last = max(most, found - last), found
    assert (await publishing).messages[0].replaced
    assert found >= QUEUES
    assert most <= QUEUES // 2
    for number in (0, QUEUES - 1):
        (delivery,) = await wide.claim(T, f"wide-{number:03}", "c", 2, HOUR)
        assert delivery.payload == b"2"


async def test_a_replacement_that_leaves_many_queues_leaves_them_in_steps(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(QUEUES):
        policy = QueuePolicy(filter="topic = 'wide' AND kind = 'old'")
        await engine.put_queue(T, f"wide-{number:03}", policy, Start())
    await engine.publish(T, "wide", [NewMessage(b"1", {"kind": "old"}, key="k")])
    dropped = 0

    def counting(*args: Any) -> None:
        nonlocal dropped
        dropped += 1
        drop_available(*args)

    monkeypatch.setattr("penstock.storage.keyvalue.publish.drop_available", counting)
    message = NewMessage(b"2", {"kind": "new"}, key="k")
    publishing = asyncio.ensure_future(engine.publish(T, "wide", [message]))
    most = last = 0
    while not publishing.done():
        await asyncio.sleep(0)
        most, last = max(most, dropped - last), dropped
    await publishing
    assert dropped == QUEUES
    assert most <= QUEUES // 2
    assert (await engine.stats(T, "wide-000")).available == 0


async def test_buckets_of_many_queues_are_evicted_over_several_commits(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.keyvalue.core._QUEUES_A_COMMIT", 10)
    evicted: list[str] = []
    evict = Queue.evict

    def counting(queue: Queue, keep: int, completed: int) -> None:
        evicted.append(queue.name)
        evict(queue, keep, completed)

    monkeypatch.setattr(Queue, "evict", counting)
    names = [f"wide-{number:02}" for number in range(25)]
    for name in names:
        await engine.put_queue(T, name, QueuePolicy(filter="topic = 'wide'"), Start())
    evicted.clear()
    await engine.publish(T, "wide", [NewMessage(b"x")])
    assert 0 < len(evicted) <= 10
    for _ in range(3):
        await engine.publish(T, Q, [NewMessage(b"x")])
    assert {*names} <= {*evicted}
