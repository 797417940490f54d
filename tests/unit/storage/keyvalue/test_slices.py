"""What sweeps and other long verbs do in one turn, counted in records; what may happen between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Sequence
from typing import Any

import pytest

from penstock.errors import UnknownQueue
from penstock.model.delivery import Ack, LogPage, Nack, Reject, ReplaySource
from penstock.model.limits import Limits
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters import KeyRange, Writes
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.browse import SLICE_BYTES
from penstock.storage.keyvalue.claim import MAX_MOVES
from penstock.storage.keyvalue.core import SLICE
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.sweep import SLICE_MOVES
from penstock.storage.listener import Listener
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

T, Q = "t", "q"
HOUR = 3600 * 1000
POLICY = QueuePolicy(done_retention_s=3600, failed_retention_s=3600)


class Counting(MemoryAdapter):
    """Counts the records that are read, and written."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        self.written = 0
        self.largest = 0

    def get(self, key: bytes) -> bytes | None:
        self.read += 1
        return super().get(key)

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self.read += 1
        for pair in super().scan(start, end, reverse=reverse):
            self.read += 1
            yield pair

    def write(self, writes: Writes, removed: Sequence[KeyRange], sync: bool) -> None:
        self.written += len(writes)
        self.largest = max(self.largest, len(writes))
        super().write(writes, removed, sync)


class Ready(Listener):
    """Remembers which queues the engine reported as ready."""

    def __init__(self) -> None:
        self.queues: set[str] = set()

    def ready(self, tenant: str, queue: str) -> None:
        assert tenant == T
        self.queues.add(queue)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def adapter() -> Counting:
    return Counting()


@pytest.fixture
async def engine(adapter: Counting, clock: FakeClock) -> AsyncIterator[KeyValueEngine]:
    options = EngineOptions(clock=clock, limits=Limits(log_retention_ms=HOUR))
    engine = await KeyValueEngine.open(adapter, options)
    await engine.put_queue(T, Q, POLICY, Start())
    yield engine
    await engine.close()


async def lade(engine: KeyValueEngine, clock: FakeClock, count: int) -> None:
    """So many deliveries of every kind of work, all of it due after three hours."""
    soon = clock.now() + HOUR
    await engine.publish(T, Q, [NewMessage(b"")] * (3 * count))
    held = await engine.claim(T, Q, "c", 3 * count, HOUR)
    await engine.settle(T, Q, [Ack(item.receipt) for item in held[:count]])
    await engine.settle(T, Q, [Reject(item.receipt) for item in held[count : 2 * count]])
    for batch in (
        [NewMessage(b"", deliver_at=soon)] * count,
        [NewMessage(b"", expires_at=soon)] * count,
        [NewMessage(b"", id=str(number)) for number in range(count)],
    ):
        await engine.publish(T, Q, batch)
    clock.advance(3 * HOUR)


async def most_a_turn(
    verb: Coroutine[Any, Any, object], engine: KeyValueEngine, adapter: Counting
) -> int:
    """Run a verb; returns the most records that it read or staged between two awaits."""
    most = 0
    stage = engine._core.stage

    class Turns:
        def __await__(self) -> Generator[Any, Any, None]:
            nonlocal most
            while True:
                read, staged = adapter.read, len(stage.writes)
                try:
                    waits_for = verb.send(None)
                except StopIteration:
                    return
                finally:
                    most = max(most, adapter.read - read + len(stage.writes) - staged)
                yield waits_for

    await Turns()
    return most


@pytest.mark.parametrize("count", [200, 2_000])
async def test_every_kind_of_work_is_done_in_slices(
    engine: KeyValueEngine, clock: FakeClock, adapter: Counting, count: int
) -> None:
    await lade(engine, clock, count)
    adapter.largest = 0
    assert await most_a_turn(engine.sweep(), engine, adapter) <= 12 * SLICE_MOVES
    assert adapter.largest <= 12 * SLICE_MOVES
    stats = await engine.stats(T, Q)
    assert (stats.delayed, stats.in_flight, stats.failed, stats.done) == (0, 0, 0, 0)
    assert (stats.expired, stats.available) == (count, 3 * count)
    reply = await engine.publish(T, Q, [NewMessage(b"", id="0")])
    assert not reply.messages[0].duplicate


async def test_a_sweep_in_slices_does_what_one_in_one_go_does(
    engine: KeyValueEngine, clock: FakeClock
) -> None:
    await lade(engine, clock, 300)
    reply = await engine.sweep()
    assert (reply.due, reply.lapsed, reply.expired) == (300, 300, 300)
    assert (reply.removed, reply.ids_forgotten, reply.more) == (600, 300, False)
    again = await engine.sweep()
    assert again == type(again)(
        due=0, lapsed=0, expired=0, removed=0, entries_removed=0, ids_forgotten=0, more=False
    )


@law("G1")
@pytest.mark.parametrize("waiting", [1, 200])
async def test_what_keeps_an_old_segment_is_looked_at_and_nothing_else(
    engine: KeyValueEngine, clock: FakeClock, adapter: Counting, waiting: int
) -> None:
    segments = 30
    for _ in range(segments):
        await engine.publish(T, Q, [NewMessage(b"")] * waiting)
        clock.advance(HOUR)
    clock.advance(2 * HOUR)
    assert (await engine.sweep()).entries_removed == 0
    adapter.read = 0
    assert (await engine.sweep()).entries_removed == 0
    assert adapter.read <= 3 * segments
    taken = await engine.claim(T, Q, "c", segments * waiting, None)
    await engine.settle(T, Q, [Ack(item.receipt) for item in taken])
    await engine.purge(T, Q, State.DONE, None, segments * waiting)
    assert (await engine.sweep()).entries_removed == segments * waiting
    assert (await engine.read_log(T, 0, 10)).entries == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("buckets", [2, 40])
async def test_a_slot_that_is_not_over_is_read_once(
    engine: KeyValueEngine, clock: FakeClock, adapter: Counting, buckets: int
) -> None:
    """Retention is exact to the millisecond; waiting for it costs a look at the slots."""
    await engine.publish(T, Q, [NewMessage(b"")] * (100 * buckets))
    taken = await engine.claim(T, Q, "c", 100 * buckets, None)
    await engine.settle(T, Q, [Ack(item.receipt) for item in taken])
    clock.advance(HOUR - 1)
    assert (await engine.sweep()).removed == 0
    adapter.read = 0
    assert (await engine.sweep()).removed == 0
    assert adapter.read <= buckets + 20
    clock.advance(1)
    assert (await engine.sweep()).removed == 100 * buckets


@law("S2")
async def test_a_queue_that_is_replaced_during_a_sweep_revives_nothing(
    engine: KeyValueEngine, clock: FakeClock, adapter: Counting
) -> None:
    await lade(engine, clock, 10 * SLICE_MOVES)
    sweeping = asyncio.ensure_future(engine.sweep())
    await asyncio.sleep(0)  # The first slice is done, the second not begun.
    await asyncio.gather(engine.delete_queue(T, Q), engine.put_queue(T, Q, POLICY, Start()))
    reply = await sweeping
    assert 0 < reply.lapsed < 10 * SLICE_MOVES
    for again in range(2):
        stats = await engine.stats(T, Q)
        assert (stats.available, stats.delayed, stats.in_flight, stats.done) == (0, 0, 0, 0)
        assert (stats.failed, stats.expired) == (0, 0)
        if not again:
            await engine.close()
            engine = await KeyValueEngine.open(adapter, EngineOptions(clock=clock))
    await engine.close()


@pytest.mark.parametrize("state", [State.DONE, State.FAILED])
async def test_a_longer_retention_counts_for_the_rest_of_a_sweep(
    engine: KeyValueEngine, clock: FakeClock, state: State
) -> None:
    """Once the change is acknowledged, nothing is removed that it keeps."""
    count = 10 * SLICE_MOVES
    await engine.publish(T, Q, [NewMessage(b"")] * count)
    held = await engine.claim(T, Q, "c", count, HOUR)
    end = Ack if state is State.DONE else Reject
    await engine.settle(T, Q, [end(item.receipt) for item in held])
    clock.advance(2 * HOUR)
    sweeping = asyncio.ensure_future(engine.sweep())
    await asyncio.sleep(0)  # The first slice is done, the second not begun.
    forever = QueuePolicy(done_retention_s=0, failed_retention_s=0)
    await engine.put_queue(T, Q, forever, Start())
    stats = await engine.stats(T, Q)
    removed = (await sweeping).removed
    assert 0 < removed < count
    assert await engine.stats(T, Q) == stats
    assert (stats.done, stats.failed)[state is State.FAILED] == count - removed


@law("S2")
async def test_a_replay_comes_after_an_ack_that_came_between_two_slices(
    engine: KeyValueEngine, clock: FakeClock
) -> None:
    await engine.publish(T, Q, [NewMessage(b"")] * (SLICE + 1))
    held = await engine.claim(T, Q, "c", SLICE + 1, HOUR)
    await engine.settle(T, Q, [Ack(item.receipt) for item in held[:-1]])
    replaying = asyncio.ensure_future(engine.replay(T, Q, ReplaySource.DONE, None, 2 * SLICE))
    await asyncio.sleep(0)  # The first slice is done, the second not begun.
    clock.advance(10)
    await engine.settle(T, Q, [Ack(held[-1].receipt)])
    assert (await replaying).count == SLICE + 1
    history = await engine.history(T, held[-1].message.id)
    assert [event.transition for event in history] == ["publish", "claim", "ack", "replay"]
    assert [event.at - clock.now() for event in history] == [-10, -10, 0, 0]


async def test_two_sweeps_at_a_time_do_the_work_once(
    engine: KeyValueEngine, clock: FakeClock
) -> None:
    await lade(engine, clock, 300)
    one, other = await asyncio.gather(engine.sweep(), engine.sweep())
    assert one.due + other.due == 300
    assert one.removed + other.removed == 600


@law("G1")
@pytest.mark.parametrize("queues", [1, 40])
async def test_what_is_replayed_while_a_segment_is_asked_about_keeps_it(
    engine: KeyValueEngine, clock: FakeClock, queues: int
) -> None:
    for number in range(queues):
        await engine.put_queue(T, f"q{number}", QueuePolicy(filter="FALSE"), Start())
    await engine.publish(T, Q, [NewMessage(b"x")])
    await engine.purge(T, Q, State.AVAILABLE, None, 1)
    clock.advance(2 * HOUR)
    pieces = engine._log_retention.run(clock.now())
    for _ in range(1 + queues):  # The segment is old, and no queue has said that it needs it.
        assert next(pieces)[1] == 0
    await engine.replay(T, Q, ReplaySource.LOG, None, 1)
    assert sum(removed for _, removed in pieces) == 0
    (taken,) = await engine.claim(T, Q, "c", 1, None)
    assert taken.payload == b"x"


# -- other verbs -----------------------------------------------------------------------------


@law("C5")
@pytest.mark.parametrize("count", [300, 3_000])
async def test_a_claim_lets_time_pass_in_slices(
    engine: KeyValueEngine, clock: FakeClock, adapter: Counting, count: int
) -> None:
    soon = clock.now() + HOUR
    await engine.publish(T, Q, [NewMessage(b"", deliver_at=soon)] * count)
    await engine.publish(T, Q, [NewMessage(b"", expires_at=soon)] * count)
    clock.advance(HOUR)
    assert await most_a_turn(engine.claim(T, Q, "c", 1, None), engine, adapter) <= 12 * SLICE_MOVES
    stats = await engine.stats(T, Q)
    assert stats.expired == min(count, MAX_MOVES)
    assert stats.delayed == max(0, count - MAX_MOVES)


@law("C5")
@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.PARTITION])
@pytest.mark.parametrize("limit", [1, 500])
async def test_a_claim_fails_a_backlog_without_attempts_left_in_slices(
    engine: KeyValueEngine, adapter: Counting, limit: int, ordering: Ordering
) -> None:
    count = MAX_MOVES + 100

    async def put(max_attempts: int) -> None:
        policy = QueuePolicy(
            max_attempts=max_attempts, ordering=ordering, partition_concurrency=count
        )
        await engine.put_queue(T, Q, policy, Start())

    await put(2)
    await engine.publish(T, Q, [NewMessage(b"")] * count)
    held = await engine.claim(T, Q, "c", count, None)
    await engine.settle(T, Q, [Nack(item.receipt, delay_ms=0) for item in held])
    await engine.publish(T, Q, [NewMessage(b"new")])
    await put(1)
    ready = engine.listener = Ready()
    most = await most_a_turn(engine.claim(T, Q, "c", limit, None), engine, adapter)
    assert most <= 12 * SLICE_MOVES
    assert (await engine.stats(T, Q)).failed == MAX_MOVES
    assert Q in ready.queues
    (taken,) = await engine.claim(T, Q, "c", limit, None)
    assert taken.payload == b"new"
    assert (await engine.stats(T, Q)).failed == count


@pytest.mark.parametrize("count", [300, 3_000])
async def test_bulk_verbs_move_and_commit_in_slices(
    engine: KeyValueEngine, adapter: Counting, count: int
) -> None:
    most = 30 * SLICE  # A replay from the log looks for each message in every place.
    await engine.publish(T, Q, [NewMessage(b"")] * count)
    purge = engine.purge(T, Q, State.AVAILABLE, None, count)
    adapter.largest = 0
    assert await most_a_turn(purge, engine, adapter) <= most
    replay = engine.replay(T, Q, ReplaySource.LOG, None, count)
    assert await most_a_turn(replay, engine, adapter) <= most
    assert adapter.largest <= most
    assert (await engine.stats(T, Q)).available == count


async def test_what_is_in_flight_is_shown_page_by_page(engine: KeyValueEngine) -> None:
    await engine.publish(T, Q, [NewMessage(b"", priority=number % 3) for number in range(250)])
    held = await engine.claim(T, Q, "c", 250, None)
    shown: list[int] = []
    cursor: str | None = None
    while cursor is not None or not shown:
        page = await engine.peek(T, Q, State.IN_FLIGHT, None, 60, cursor)
        shown += [item.message.id for item in page.items]
        cursor = page.cursor
    assert shown == [item.message.id for item in held]


async def test_stats_of_many_partitions_are_read_in_slices(
    engine: KeyValueEngine, adapter: Counting
) -> None:
    await engine.put_queue(T, "o", QueuePolicy(ordering=Ordering.PARTITION), Start())
    names = [f"p{number:04}" for number in range(1_050)]
    await engine.publish(T, "o", [NewMessage(b"", partition_key=name) for name in names])
    partitions = engine._core.tenant(T).queue("o").partitions
    assert partitions is not None
    for partition in list(partitions._windows):
        partitions._drop_window(partition)
    assert await most_a_turn(engine.stats(T, "o"), engine, adapter) <= 4 * SLICE_MOVES * 2
    stats = await engine.stats(T, "o")
    assert [item.partition for item in stats.partitions] == names


async def test_stats_of_a_queue_that_is_behind_are_counted_in_slices(
    engine: KeyValueEngine, adapter: Counting
) -> None:
    commits = 1_000
    for _ in range(commits):
        await engine.publish(T, Q, [NewMessage(b""), NewMessage(b"")])
    await engine.put_queue(T, "late", QueuePolicy(filter="TRUE"), Start(Start.EARLIEST))
    assert await most_a_turn(engine.stats(T, "late"), engine, adapter) <= commits // 2
    counting = asyncio.ensure_future(engine.stats(T, "late"))
    await asyncio.sleep(0)  # The first slice is counted; others come between.
    await asyncio.gather(engine.publish(T, Q, [NewMessage(b"")]), engine.route(T, "late", 7))
    stats = await counting
    assert (stats.lag, stats.lag - stats.available) == (2 * commits + 1, 2 * commits - 6)


async def test_stats_end_with_a_queue_that_is_behind(engine: KeyValueEngine) -> None:
    for _ in range(600):
        await engine.publish(T, Q, [NewMessage(b"")])
    await engine.put_queue(T, "late", QueuePolicy(filter="TRUE"), Start(Start.EARLIEST))
    counting = asyncio.ensure_future(engine.stats(T, "late"))
    await asyncio.sleep(0)
    await engine.delete_queue(T, "late")
    with pytest.raises(UnknownQueue):
        await counting


async def test_the_time_that_a_queue_starts_at_is_looked_for_in_slices(
    engine: KeyValueEngine, clock: FakeClock, adapter: Counting
) -> None:
    """Another call may create the queue first, and the log may grow."""
    count, policy = 2_500, QueuePolicy(filter="TRUE")
    for _ in range(count // 10):
        await engine.publish(T, Q, [NewMessage(b"")] * 10)
    clock.advance(1)
    late = Start(Start.TIME, clock.now())
    most = await most_a_turn(engine.put_queue(T, "none", policy, late), engine, adapter)
    assert most <= 12 * SLICE
    assert (await engine.get_queue(T, "none")).cursor is None
    creating = asyncio.ensure_future(engine.put_queue(T, "late", policy, late))
    again = asyncio.ensure_future(engine.put_queue(T, "late", policy, Start()))
    grown = asyncio.ensure_future(engine.put_queue(T, "grown", policy, late))
    await asyncio.sleep(0)
    await engine.publish(T, Q, [NewMessage(b"")])
    assert {(await creating).cursor, (await again).cursor} == {None}
    assert (await grown).cursor == count


@pytest.mark.parametrize("verb", ["message", "history"])
async def test_many_queues_are_asked_about_a_message_in_slices(
    engine: KeyValueEngine, adapter: Counting, verb: str
) -> None:
    """A queue that is deleted in between is left out, and those after it are not."""
    names = [f"q{number:03}" for number in range(300)]
    for name in names:
        await engine.put_queue(T, name, QueuePolicy(filter="topic = 'many'"), Start())
    (stored,) = (await engine.publish(T, "many", [NewMessage(b"x")])).messages
    ask = getattr(engine, verb)
    assert await most_a_turn(ask(T, stored.id), engine, adapter) <= 20 * SLICE
    asking = asyncio.ensure_future(ask(T, stored.id))
    await asyncio.sleep(0)
    await engine.delete_queue(T, names[-2])
    reply = await asking
    found = reply.deliveries if verb == "message" else reply
    assert [item.queue for item in found] == [Q, *names[:-2], names[-1]]


async def test_the_log_is_read_in_slices(engine: KeyValueEngine, adapter: Counting) -> None:
    count = 2_500
    for _ in range(count // 10):
        await engine.publish(T, Q, [NewMessage(b"payload")] * 10)
    read = engine.read_log(T, Offset(0), count - 1, payloads=True)
    assert await most_a_turn(read, engine, adapter) <= 12 * SLICE
    page = await engine.read_log(T, Offset(0), count - 1, payloads=True)
    assert [entry.message.offset for entry in page.entries] == [*range(count - 1)]
    assert page.next_offset == count - 1
    rest = await engine.read_log(T, page.next_offset, count)
    assert ([entry.message.offset for entry in rest.entries], rest.next_offset) == (
        [count - 1],
        count,
    )


async def test_histories_are_read_in_slices(engine: KeyValueEngine, adapter: Counting) -> None:
    count = 2_500
    for _ in range(count // 500):
        await engine.publish(T, Q, [NewMessage(b"")] * 500)
        held = await engine.claim(T, Q, "c", 500, HOUR)
        await engine.settle(T, Q, [Nack(item.receipt, delay_ms=HOUR) for item in held])
    most = await most_a_turn(engine.read_history(T, Offset(0), count), engine, adapter)
    assert most <= 30 * SLICE
    page = await engine.read_history(T, Offset(0), count)
    assert page.next_offset == count
    ids = [entry.message_id for entry in page.entries]
    assert ids == sorted([*range(count)] * 3)
    short = await engine.read_history(T, Offset(3), 601)
    assert (short.next_offset, len(short.entries)) == (604, 3 * 601)


async def test_deleting_a_queue_costs_the_same_however_much_it_holds(
    engine: KeyValueEngine, adapter: Counting
) -> None:
    work = []
    for count in (1, 3_000):
        name = f"ordered{count}"
        policy = QueuePolicy(filter=f"topic = '{name}'", ordering=Ordering.PARTITION)
        await engine.put_queue(T, name, policy, Start())
        batch = [NewMessage(b"", partition_key=str(number)) for number in range(count)]
        await engine.publish(T, name, batch)
        work.append(await most_a_turn(engine.delete_queue(T, name), engine, adapter))
    assert work[0] == work[1]


async def test_a_keyed_replacement_costs_what_its_queues_are(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the square of them: with 5,000 queues one message took two seconds."""
    queues = 300
    for number in range(queues):
        await engine.put_queue(T, f"all{number}", QueuePolicy(filter="topic = 'all'"), Start())
    await engine.publish(T, "all", [NewMessage(b"1", key="k")])
    compared = 0

    def equal(self: Queue, other: object) -> bool:
        nonlocal compared
        compared += 1
        return self is other

    monkeypatch.setattr(Queue, "__eq__", equal)
    monkeypatch.setattr(Queue, "__hash__", object.__hash__)
    (reply,) = (await engine.publish(T, "all", [NewMessage(b"2", key="k")])).messages
    assert reply.replaced
    assert compared == 0


async def test_payloads_are_read_in_slices(engine: KeyValueEngine) -> None:
    count = 10
    for _ in range(count):
        await engine.publish(T, Q, [NewMessage(bytes(SLICE_BYTES // 2 + 1))])
    for verb in (
        engine.read_log(T, Offset(0), count, payloads=True),
        engine.peek(T, Q, State.AVAILABLE, None, count, payloads=True),
    ):
        before = engine.turns.granted
        page = await verb
        found = page.entries if isinstance(page, LogPage) else page.items
        assert [len(item.payload or b"") for item in found] == [SLICE_BYTES // 2 + 1] * count
        assert engine.turns.granted - before == count // 2 - 1


async def test_claims_wait_while_too_much_waits_for_its_commit(
    engine: KeyValueEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.keyvalue.claim_verbs._UNANSWERED_BYTES", 1_000)
    await engine.publish(T, Q, [NewMessage(bytes(600)) for _ in range(20)])
    most = 0

    async def claim() -> int:
        nonlocal most
        claiming = asyncio.ensure_future(engine.claim(T, Q, "c", 1, HOUR))
        while not claiming.done():
            most = max(most, engine._unanswered)
            await asyncio.sleep(0)
        return len(claiming.result())

    assert await asyncio.gather(*(claim() for _ in range(20))) == [1] * 20
    assert 600 <= most <= 1_600
    assert engine._unanswered == 0
