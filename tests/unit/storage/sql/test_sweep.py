"""The sweep of the SQL engine: several servers at once, what it costs, and what it leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import StoreCorrupt, UnknownMessage
from penstock.model.delivery import QueueStats, ReplaySource, SweepReply
from penstock.model.limits import Limits
from penstock.model.message import MessageId, NewMessage, Offset
from penstock.model.queue import Ordering, QueuePolicy, Start, TopicPolicy
from penstock.model.states import State
from penstock.storage.contract import EngineOptions
from penstock.storage.sql import compaction, retention
from penstock.storage.sql import sweep as module
from penstock.storage.sql import sweep as sweeping
from penstock.storage.sql.database import Session
from penstock.storage.sql.deliveries import DeliveryRecord, Phase, segment_of
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.work import Work
from penstock.testing.clock import FakeClock
from penstock.testing.conformance.harness import TENANT, Store
from tests.databases import server, store_opener

pytestmark = pytest.mark.asyncio

#: Only a test that would hang for ever waits this long.
HANG_S = 30.0
HOUR_MS = 3_600_000
#: How long the log is kept here.
LOG_MS = 10_000


@pytest.fixture(params=["postgresql", "mysql"], autouse=True)
def dialect(request: pytest.FixtureRequest) -> str:
    """Every test runs on both; ``sql`` asks the one that is in use."""
    _used[:] = [request.param]
    return request.param


_used: list[str] = []


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def pair(
    dialect: str, clock: FakeClock, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Store, Store]]:
    """Two servers on one store."""
    options = EngineOptions(clock=clock, auto_create=False, limits=Limits(log_retention_ms=LOG_MS))
    opener = store_opener(dialect)
    stores = (Store(opener, tmp_path, options, clock), Store(opener, tmp_path, options, clock))
    for one in stores:
        await one.open()
    yield stores
    # A log that is damaged on purpose cannot be read in bulk either.
    if "damaged" not in request.node.name:
        await stores[0].verify()
    for one in stores:
        await one.engine.close()


@pytest.fixture
def store(pair: tuple[Store, Store]) -> Store:
    return pair[0]


async def nothing(*_: Any) -> None:
    """What does not happen."""


def core_of(store: Store) -> Any:
    assert isinstance(store.engine, SqlEngine)
    return store.engine._core


def sql(statement: str) -> list[list[str]]:
    """What the database itself says."""
    return server(_used[0]).sql(statement, "store")


def rows(table: str, where: str = "TRUE") -> int:
    """How many rows a table has."""
    return int(sql(f"SELECT count(*) FROM penstock_{table} WHERE {where}")[0][0])


def segments() -> set[int]:
    return {int(number) for (number,) in sql("SELECT segment FROM penstock_log")}


def damage(table: str, column: str, where: str) -> None:
    """Write something that nobody can read."""
    wrong = {"postgresql": "'\\x0000000000'", "mysql": "x'0000000000'"}[_used[0]]
    sql(f"UPDATE penstock_{table} SET {column} = {wrong} WHERE {where}")


async def beside_sweeps(
    store: Store, other: Store, use: Awaitable[None], check: Callable[[QueueStats], None]
) -> None:
    """Use a queue while two servers sweep and its stats are looked at; then sweep it clean."""
    using = asyncio.ensure_future(use)

    async def add_up(one: Store) -> None:
        while not using.done():
            await one.engine.sweep()

    async def look() -> None:
        while not using.done():
            check(await other.engine.stats(TENANT, "q"))

    await asyncio.gather(using, add_up(store), add_up(other), look())
    await sweep_all(store)
    await sweep_all(store)


async def sweep_all(store: Store) -> Counter[str]:
    """Sweep until nothing is left; what was done altogether."""
    done: Counter[str] = Counter()
    while True:
        reply = await store.engine.sweep()
        done.update(_numbers(reply))
        if not reply.more:
            return done


def _numbers(reply: SweepReply) -> dict[str, int]:
    return {name: getattr(reply, name) for name in reply.__struct_fields__ if name != "more"}


class Counting:
    """Counts the statements of a server by name."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        database = core_of(store).database
        for kind in ("reading", "transaction"):
            monkeypatch.setattr(database, kind, self._watched(getattr(database, kind)))

    def _watched(
        self, opened: Callable[[], AbstractAsyncContextManager[Session]]
    ) -> Callable[[], AbstractAsyncContextManager[Session]]:
        @asynccontextmanager
        async def watched() -> AsyncIterator[Session]:
            async with opened() as session:
                for name in ("fetch", "run"):
                    setattr(session, name, self._counted(getattr(session, name)))
                setattr(session, "change", self._counted(session.change, "change"))  # noqa: B010
                setattr(session, "due_groups", self._counted(session.due_groups, "due"))  # noqa: B010
                yield session

        return watched

    def _counted(self, call: Callable[..., Awaitable[Any]], name: str = "") -> Any:
        async def counted(*args: Any, **parameters: Any) -> Any:
            self.seen[name or args[0]] += 1
            return await call(*args, **parameters)

        return counted


class TestCost:
    """Every server sweeps every second."""

    async def test_an_idle_sweep_is_a_handful_of_statements_however_many_queues(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(50):
            await store.queue(f"q{number}", "topic = 'orders'")
        far = clock.now() + 10 * HOUR_MS
        await store.publish(b"1", b"2", NewMessage(b"3", deliver_at=far, expires_at=far + 1))
        await store.ack(await store.claim_one("q7"))
        await store.fail_one("q8")
        await store.claim_one("q9", lease_ms=HOUR_MS)
        # Something old that has to stay.
        clock.advance(2 * LOG_MS)
        for _ in range(3):
            await sweep_all(store)
        counting = Counting(store, monkeypatch)
        reply = await store.engine.sweep()
        assert set(_numbers(reply).values()) == {0}
        assert counting.seen.total() <= 6, counting.seen
        # And mostly it is one: what nobody waits for is looked at now and then.
        counting.seen.clear()
        for _ in range(9):
            clock.advance(1000)
            await store.engine.sweep()
        assert counting.seen == {"horizons": 9}
        clock.advance(1000)
        await store.engine.sweep()
        assert counting.seen["old_segments"] >= 1

    async def test_only_queues_with_something_to_do_get_a_transaction(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(10):
            await store.queue(f"q{number}", f"topic = 't{number}'")
        await store.publish(NewMessage(b"x", deliver_at=clock.now() + 10), topic="t3")
        await sweep_all(store)
        counting = Counting(store, monkeypatch)
        clock.advance(10)
        assert (await store.engine.sweep()).due == 1
        assert counting.seen["due"] == counting.seen["change"] == 1

    async def test_what_is_kept_long_is_looked_at_in_turn(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Failed deliveries hold more segments than a page; what comes after them leaves."""
        monkeypatch.setattr(retention, "_PAGE", 5)
        kept = {}
        for name in ("stays", "goes"):
            await store.queue(name, f"topic = '{name}'", failed_retention_s=0)
            kept[name] = [(await store.publish(b"x", topic=name))[0] for _ in range(7)]
            for _ in range(7):
                await store.fail_one(name)
        for _ in range(12):
            await store.publish(b"y", topic="unwanted")
        clock.advance(LOG_MS)
        counting = Counting(store, monkeypatch)
        assert (await store.engine.sweep()).entries_removed == 12
        assert len(segments()) == 14
        # From then on it is two pages a sweep, and whatever becomes free is found.
        counting.seen.clear()
        await store.engine.delete_queue(TENANT, "goes")
        for sweeps in range(1, 5):
            await store.engine.sweep()
            assert counting.seen["old_segments"] <= 2 * sweeps + 2
        assert segments() == {segment_of(i)[0] for i in kept["stays"]}

    async def test_what_retention_frees_leaves_at_once(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However much is kept before it, it is not looked for."""
        monkeypatch.setattr(retention, "_PAGE", 5)
        await store.queue(failed_retention_s=0, done_retention_s=100)
        for _ in range(20):
            await store.publish(b"x")
            await store.fail_one()
        for turn in range(20):
            await store.publish(b"y")
            await store.ack(await store.claim_one())
            if turn == 9:
                clock.advance(1000)
        clock.advance(99_000)
        reply = await store.engine.sweep()
        assert (reply.removed, reply.entries_removed, reply.more) == (10, 10, False)
        clock.advance(1000)
        reply = await store.engine.sweep(6)
        assert (reply.removed, reply.entries_removed, reply.more) == (6, 6, True)
        reply = await store.engine.sweep(6)
        assert (reply.removed, reply.entries_removed, reply.more) == (4, 4, False)
        assert len(segments()) == 20


class TestTogether:
    """Two servers sweep one store."""

    async def test_nothing_is_lost_or_done_twice(
        self, pair: tuple[Store, Store], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_MAX_GROUPS", 3)
        store = pair[0]
        queues = [f"q{number}" for number in range(4)]
        for name in queues:
            await store.queue(name, "topic = 'orders'", done_retention_s=10, max_attempts=9)
        await store.engine.put_topic(TENANT, "orders", TopicPolicy(dedup_window_ms=1000))
        now = clock.now()
        for number in range(10):
            await store.publish(b"lapses", NewMessage(b"id", id=f"i{number}"))
        for name in queues:
            for _ in range(10):
                await store.claim(name, 2, lease_ms=1000)
        for _ in range(10):
            await store.publish(
                NewMessage(b"due", deliver_at=now + 500), NewMessage(b"old", expires_at=now + 500)
            )
        for _ in range(10):
            await store.publish(b"nobody's", topic="unwanted")
        clock.advance(LOG_MS)
        together = sum(await asyncio.gather(*map(sweep_all, pair)), Counter())
        # What was locked by the other one is left for the next time.
        together += await sweep_all(store)
        assert together == Counter(
            due=40, lapsed=80, expired=40, ids_forgotten=10, entries_removed=10
        )
        for name in queues:
            stats = await store.engine.stats(TENANT, name)
            assert (stats.available, stats.expired, stats.in_flight) == (30, 10, 0)
            claimed = await store.claim(name, 100)
            assert len({one.message.id for one in claimed}) == len(claimed) == 30
        clock.advance(10_000)
        together = sum(await asyncio.gather(*map(sweep_all, pair)), Counter())
        together += await sweep_all(store)
        assert together["removed"] == 40

    async def test_they_do_not_wait_for_each_other(
        self, pair: tuple[Store, Store], clock: FakeClock
    ) -> None:
        store, other = pair
        await store.queue()
        await store.publish(NewMessage(b"x", deliver_at=clock.now() + 10))
        await store.publish(b"y", topic="other")
        clock.advance(LOG_MS)

        async def act(work: Work) -> SweepReply:
            found = work.tenant.queues["q"].number
            assert len(await work.session.due_groups(found, [2], work.now, 9)) == 1
            return await asyncio.wait_for(other.engine.sweep(), HANG_S)

        assert (await core_of(store).transact(TENANT, act)).due == 0
        assert (await other.engine.sweep()).due == 1

    async def test_a_server_forgets_what_another_removed(
        self, pair: tuple[Store, Store], clock: FakeClock
    ) -> None:
        store, other = pair
        await store.queue(done_retention_s=1)
        (message,) = await store.publish(b"x")
        await other.ack(await other.claim_one())
        assert core_of(other).segments._known
        clock.advance(LOG_MS)
        await sweep_all(store)
        await sweep_all(other)
        assert not core_of(other).segments._known
        with pytest.raises(UnknownMessage):
            await other.engine.message(TENANT, message)


class TestLog:
    """No delivery loses its message (G1)."""

    async def old_message(self, store: Store) -> MessageId:
        """A message that the queue does not have, and that may leave."""
        (message,) = await store.publish(b"x", topic="other")
        await store.queue()
        core_of(store).clock.advance(LOG_MS)
        return message

    async def test_a_segment_that_deliveries_are_added_of_stays(
        self, pair: tuple[Store, Store]
    ) -> None:
        store, other = pair
        message = await self.old_message(store)
        number, index = segment_of(message)

        async def add(work: Work) -> None:
            assert await work.session.fetch("share_segments", numbers=[number]) == [(number,)]
            queue = work.tenant.queues["q"]
            record = DeliveryRecord(joined_at=work.now)
            work.add(queue.number, Phase.RETURNED, 5, number, [index], record)
            reply = await asyncio.wait_for(other.engine.sweep(), HANG_S)
            assert (reply.entries_removed, reply.more) == (0, False)

        await core_of(store).transact(TENANT, add)
        assert (await other.engine.sweep()).entries_removed == 0
        assert (await store.claim_one()).payload == b"x"

    @pytest.mark.parametrize("what", ["delivery", "cursor"])
    async def test_what_comes_between_look_and_lock_counts(
        self, pair: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        store, other = pair
        await self.old_message(store)
        look = retention._keeping

        async def meanwhile(*args: Any) -> Any:
            found = await look(*args)
            if what == "delivery":
                await other.engine.replay(TENANT, "q", ReplaySource.LOG, None, 10)
            else:
                policy = QueuePolicy()
                await other.engine.put_queue(TENANT, "late", policy, Start(Start.EARLIEST))
            return found

        monkeypatch.setattr(retention, "_keeping", meanwhile)
        await store.engine.sweep()
        assert len(segments()) == 1

    async def test_whoever_comes_too_late_is_told(self, pair: tuple[Store, Store]) -> None:
        store, other = pair
        number, _ = segment_of(await self.old_message(store))
        core = core_of(store)

        async def remove(session: Session) -> asyncio.Task[Any]:
            assert len(await session.fetch("lock_segments", numbers=[number])) == 1
            share = core_of(other).run_without_tenant(
                lambda s: s.fetch("share_segments", numbers=[number]), transaction=True
            )
            waiting = asyncio.create_task(share)
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await session.run("remove_segments", numbers=[number])
            return waiting

        waiting = await core.run_without_tenant(remove, transaction=True)
        assert await asyncio.wait_for(waiting, HANG_S) == []

    @pytest.mark.parametrize("verb", ["replay", "route"])
    async def test_replay_and_route_wait_for_a_sweep_that_removes(
        self, pair: tuple[Store, Store], clock: FakeClock, verb: str
    ) -> None:
        store, other = pair
        ids = [(await store.publish(payload, topic="other"))[0] for payload in (b"1", b"2")]
        removed = segment_of(ids[0])[0]
        await store.queue("q", start=Start(Start.EARLIEST) if verb == "route" else Start())

        async def add() -> int:
            if verb == "route":
                return (await other.engine.route(TENANT, "q", 10)).assigned
            return (await other.engine.replay(TENANT, "q", ReplaySource.LOG, None, 10)).count

        async def remove(session: Session) -> asyncio.Task[int]:
            assert len(await session.fetch("lock_segments", numbers=[removed])) == 1
            adding = asyncio.create_task(add())
            await asyncio.sleep(0.3)
            assert not adding.done()
            await session.run("remove_segments", numbers=[removed])
            return adding

        adding = await core_of(store).run_without_tenant(remove, transaction=True)
        assert await asyncio.wait_for(adding, HANG_S) == 1
        assert [one.payload for one in await store.claim("q", 10)] == [b"2"]

    @pytest.mark.parametrize("verb", ["replay", "route"])
    async def test_replay_and_route_beside_sweeps(
        self, pair: tuple[Store, Store], clock: FakeClock, verb: str
    ) -> None:
        store, other = pair
        for turn in range(15):
            payload = b"%d" % turn
            await store.publish(payload, topic="other")
            clock.advance(LOG_MS)
            name = f"q{turn}"
            start = Start(Start.EARLIEST) if verb == "route" else Start()

            async def add(name: str = name, start: Start = start) -> None:
                await store.queue(name, start=start)
                if verb == "route":
                    while (await store.engine.route(TENANT, name, 10)).cursor is not None:
                        pass
                else:
                    await store.engine.replay(TENANT, name, ReplaySource.LOG, None, 10)

            async def remove(turn: int = turn) -> None:
                await asyncio.sleep(0.002 * turn)
                for _ in range(3):
                    await other.engine.sweep()

            await asyncio.gather(add(), remove())
            # It came in time, or not at all; a delivery without its message would raise.
            claimed = await store.claim(name, 10)
            assert [one.payload for one in claimed] in ([], [payload])
            await store.engine.delete_queue(TENANT, name)
            await sweep_all(store)
            assert segments() == set()

    @pytest.mark.parametrize("held", [0, 1], ids=["first", "second"])
    async def test_an_older_entry_never_outlives_a_newer_one(
        self, store: Store, clock: FakeClock, held: int
    ) -> None:
        """Something else in its segment keeps one; those after it must not leave before it."""
        await store.queue("a", "topic = 'orders'", done_retention_s=1)
        await store.queue("keeps", "kind = 'kept'", failed_retention_s=0)
        kept = NewMessage(b"kept", headers={"kind": "kept"})
        ids = set()
        for turn, payload in enumerate((b"1", b"2", b"3")):
            batch = [NewMessage(payload, key="k"), *([kept] if turn == held else [])]
            ids.add((await store.publish(*batch))[0])
        (message,) = ids
        await store.fail_one("keeps")
        for delivery in await store.claim("a", 10):
            await store.ack(delivery)
        for _ in range(3):
            clock.advance(LOG_MS)
            await sweep_all(store)
            assert (await store.engine.message(TENANT, message)).payload == b"3"
            assert len(segments()) == 3 - held
        await store.engine.purge(TENANT, "keeps.dlq", State.AVAILABLE, None, 10)
        for _ in range(2):
            await sweep_all(store)
        assert segments() == set()
        assert rows("newest") == 0
        with pytest.raises(UnknownMessage):
            await store.engine.message(TENANT, message)

    async def test_a_replacement_outlives_the_first_entry_and_is_delivered(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.queue("a", "topic = 'orders'")
        (message,) = await store.publish(NewMessage(b"1", key="k"))
        clock.advance(LOG_MS // 2)
        await store.publish(NewMessage(b"2", key="k"))
        await store.engine.delete_queue(TENANT, "a")
        clock.advance(LOG_MS // 2)
        await sweep_all(store)
        assert len(segments()) == 1
        await store.queue("late", start=Start(Start.EARLIEST))
        while (await store.engine.route(TENANT, "late", 10)).cursor is not None:
            pass
        clock.advance(LOG_MS)
        await sweep_all(store)
        delivery = await store.claim_one("late")
        assert (delivery.message.id, delivery.payload) == (message, b"2")

    async def test_it_leaves_when_it_is_old_enough(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention.LogRetention, "_look_around", nothing)
        for _ in range(5):
            await store.publish(b"x")
            clock.advance(LOG_MS // 5)
        for left in (4, 3, 2, 1, 0):
            assert (await store.engine.sweep()).entries_removed == 1
            assert len(segments()) == left
            clock.advance(LOG_MS // 5)

    @pytest.mark.parametrize("kept_by", ["archive", "cursor"])
    async def test_what_had_to_wait_leaves_when_it_may(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, kept_by: str
    ) -> None:
        monkeypatch.setattr(retention, "_PAGE", 3)
        monkeypatch.setattr(sweeping, "_REST_MS", 0)
        # Not by chance: nothing is looked at but what has grown old, once.
        monkeypatch.setattr(retention.LogRetention, "_look_around", nothing)
        core = core_of(store)
        options = core.options
        ids = [(await store.publish(b"x", topic="other"))[0] for _ in range(8)]
        if kept_by == "archive":
            core.options = replace(options, archive=True)
        else:
            await store.queue(filter="topic = 'orders'", start=Start(Start.EARLIEST))
        clock.advance(LOG_MS)
        assert (await sweep_all(store))["entries_removed"] == 0
        counting = Counting(store, monkeypatch)
        await store.engine.sweep()
        assert counting.seen["old_segments"] == 1
        left = 8
        while left:
            if kept_by == "archive":
                await store.engine.archived(
                    TENANT, Offset(ids[9 - left]), await store.engine.identity(TENANT)
                )
                left -= 2
            elif (await store.engine.route(TENANT, "q", 2)).cursor is None:
                left = 0
            else:
                left = max(left - 2, 0)
            await sweep_all(store)
            assert len(segments()) == left
        core.options = options

    async def test_the_end_stays_where_it_was(self, store: Store, clock: FakeClock) -> None:
        await store.publish(b"1", b"2")
        end = await store.engine.log_end(TENANT)
        clock.advance(LOG_MS)
        assert (await store.engine.sweep()).entries_removed == 2
        assert await store.engine.log_end(TENANT) == end

    async def test_in_small_steps(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "_PAGE", 3)
        monkeypatch.setattr(retention, "_MAX_PAGES", 2)
        for _ in range(20):
            await store.publish(b"1", b"2")
        clock.advance(LOG_MS)
        replies: list[SweepReply] = []
        while not replies or replies[-1].more:
            replies.append(await store.engine.sweep(5))
        assert [reply.entries_removed for reply in replies if reply.entries_removed > 6] == []
        assert sum(reply.entries_removed for reply in replies) == 40

    async def test_archived_only_grows(self, store: Store) -> None:
        ids = await store.publish(b"1", b"2", b"3")
        for through in (ids[0], ids[2], ids[1]):
            await store.engine.archived(
                TENANT, Offset(through), await store.engine.identity(TENANT)
            )
        assert sql("SELECT archived FROM penstock_tenant") == [[str(ids[2])]]

    async def test_a_damaged_segment_is_kept_and_told_of(
        self, store: Store, clock: FakeClock
    ) -> None:
        ids = [(await store.publish(b"x"))[0] for _ in range(3)]
        damaged = segment_of(ids[1])[0]
        damage("log", "metadata", f"segment = {damaged}")
        core_of(store).segments.forget([damaged])
        clock.advance(LOG_MS)
        with pytest.raises(StoreCorrupt):
            await store.engine.sweep()
        assert segments() == {damaged}


class TestDeliveries:
    """What the conformance suite does not ask."""

    async def test_failed_ones_that_are_delayed_leave_on_time(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_MAX_GROUPS", 4)
        await store.queue(failed_retention_s=10)
        await store.publish(*[b"x"] * 10)
        # Those that failed last are looked at first.
        for count, delivery in enumerate(reversed(await store.claim(limit=10))):
            if count == 6:
                clock.advance(1)
            await store.reject(delivery)
        for _ in range(10):
            await store.nack(await store.claim_one("q.dlq"), delay_ms=HOUR_MS)
        clock.advance(9_998)
        for removed in (0, 6, 4):
            done = sum([await sweep_all(store) for _ in range(4)], Counter())
            assert done["removed"] == removed
            clock.advance(1)

    async def test_what_lapses_in_the_dead_letters_leaves_at_once_if_it_failed_long_ago(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.queue(failed_retention_s=10)
        await store.publish(b"x")
        await store.fail_one()
        clock.advance(5_000)
        await store.claim_one("q.dlq", lease_ms=5_000)
        clock.advance(5_000)
        reply = await store.engine.sweep()
        assert (reply.lapsed, reply.removed) == (1, 1)

    async def test_more_is_only_said_if_there_is_more(self, store: Store, clock: FakeClock) -> None:
        await store.queue()
        for _ in range(5):
            await store.publish(NewMessage(b"x", deliver_at=clock.now() + 10))
        clock.advance(10)
        replies = [await store.engine.sweep(2) for _ in range(3)]
        assert [(reply.due, reply.more) for reply in replies] == [(2, True), (2, True), (1, False)]
        for _ in range(4):
            await store.publish(NewMessage(b"x", deliver_at=clock.now() + 10))
        clock.advance(10)
        replies = [await store.engine.sweep(2) for _ in range(2)]
        assert [(reply.due, reply.more) for reply in replies] == [(2, True), (2, False)]

    async def test_a_queue_with_much_to_do_does_not_keep_others_waiting(
        self, store: Store, clock: FakeClock
    ) -> None:
        for name in ("a", "b", "c"):
            await store.queue(name, max_attempts=99)
        await store.publish(*[b"x"] * 4)
        for _ in range(3):
            for name in ("a", "b", "c"):
                while await store.claim(name, 1, lease_ms=1000):
                    pass
            clock.advance(1000)
            # Two sweeps are not enough for all, but each queue has its turn.
            await store.engine.sweep(4)
        stats = [await store.engine.stats(TENANT, name) for name in ("a", "b", "c")]
        assert [one.in_flight for one in stats] == [4, 4, 0]
        assert all(one.grants > 4 for one in stats)

    async def test_dead_consumers_lose_their_partitions(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.queue(ordering=Ordering.PARTITION)
        await store.publish(NewMessage(b"x", partition_key="p"))
        await store.engine.join(TENANT, "q", "dead")
        await store.claim_one(consumer="dead", lease_ms=HOUR_MS)
        clock.advance(60_000)
        await sweep_all(store)
        assert rows("consumer") == rows("owner") == 0
        assert (await store.engine.stats(TENANT, "q")).available == 1

    async def test_damage_in_one_queue_does_not_stop_the_others(
        self, store: Store, clock: FakeClock
    ) -> None:
        for name in ("a", "b"):
            await store.queue(name)
        await store.publish(NewMessage(b"x", deliver_at=clock.now() + 10))
        ((number,),) = sql("SELECT number FROM penstock_queue WHERE name = 'a'")
        damage("run", "record", f"queue = {number}")
        clock.advance(10)
        with pytest.raises(StoreCorrupt):
            await store.engine.sweep()
        assert (await store.engine.stats(TENANT, "b")).available == 1
        await store.engine.delete_queue(TENANT, "a")

    async def test_ids_are_forgotten_in_small_steps(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "_MAX_ROWS", 2)
        monkeypatch.setattr(sweeping, "_REST_MS", 0)
        await store.engine.put_topic(TENANT, "orders", TopicPolicy(dedup_window_ms=1000))
        await store.publish(*[NewMessage(b"x", id=str(number)) for number in range(7)])
        clock.advance(999)
        assert (await store.engine.sweep()).ids_forgotten == 0
        clock.advance(1)
        first = await store.engine.sweep(5)
        assert (first.ids_forgotten, first.more) == (5, True)
        assert (await sweep_all(store))["ids_forgotten"] == 2
        assert rows("id") == 0


class TestTallies:
    """Adding up changes no sum (Q2)."""

    async def test_many_rows_become_one(self, store: Store) -> None:
        await store.queue()
        for _ in range(compaction._MANY + 10):
            await store.publish(b"x")
        for _ in range(compaction._MANY + 5):
            await store.ack(await store.claim_one())
        before = await store.picture("q")
        assert rows("tally") > 4 * compaction._MANY
        await store.engine.sweep()
        kinds = "SELECT kind, count(*) FROM penstock_tally GROUP BY kind HAVING count(*) > 1"
        assert sql(kinds) == []
        assert await store.picture("q") == before
        await store.publish(b"y")
        assert (await store.engine.stats(TENANT, "q")).available == 6

    async def test_rows_that_only_notify_pollers_become_one(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A queue may be used without a change of its counters."""
        monkeypatch.setattr(sweeping, "_REST_MS", 0)
        monkeypatch.setattr(compaction, "_MANY", 3)
        await store.queue()
        await store.engine.sweep()
        (number,) = sql("SELECT number FROM penstock_queue")[0]
        for _ in range(5):
            sql(f"INSERT INTO penstock_tally (queue, kind, delta) VALUES ({number}, 99, 0)")
        await store.engine.sweep()
        assert rows("tally", "kind = 99") == 1

    async def test_beside_traffic_and_another_server(
        self, pair: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "_MANY", 3)
        monkeypatch.setattr(compaction, "_MAX_ROWS", 10)
        store, other = pair
        await store.queue()

        async def use() -> None:
            for _ in range(40):
                await store.publish(b"x")
                await store.ack(await store.claim_one())

        def check(stats: QueueStats) -> None:
            assert 0 <= stats.available + stats.in_flight <= 1
            assert stats.acks == stats.done <= stats.grants

        await beside_sweeps(store, other, use(), check)
        assert rows("tally", "kind < 99") <= 3 * 3
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.done, stats.acks, stats.grants, stats.available) == (40, 40, 40, 0)

    async def test_the_newest_row_is_never_older_than_before(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By it other servers notice that something happened, also if the sum is nothing."""
        monkeypatch.setattr(compaction, "_MANY", 1)
        newest = "SELECT max(number) FROM penstock_tally WHERE kind = 3"
        await store.queue()
        await store.publish(b"x")
        await store.ack(await store.claim_one())
        before = sql(newest)
        await store.engine.sweep()
        assert rows("tally", "kind = 3") == 1
        assert int(sql(newest)[0][0]) > int(before[0][0])


class TestPartitions:
    """What partitions have is added up (Q2)."""

    async def queue(self, store: Store) -> None:
        policy = QueuePolicy(filter="TRUE", ordering=Ordering.PARTITION)
        await store.engine.put_queue(TENANT, "q", policy, Start())

    async def test_many_rows_become_one_a_partition(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "_MANY", 5)
        await self.queue(store)
        for number in range(12):
            await store.publish(NewMessage(b"x", partition_key=f"p{number % 3}"))
        for _ in range(2):
            await store.ack(await store.claim_one())
        before = await store.picture("q")
        assert (rows("partition_tally"), rows("partition")) == (14, 0)
        await store.engine.sweep()
        assert (rows("partition_tally"), rows("partition")) == (0, 3)
        assert await store.picture("q") == before
        await store.publish(NewMessage(b"y", partition_key="p1"))
        unsettled = [part.unsettled for part in (await store.engine.stats(TENANT, "q")).partitions]
        assert sum(unsettled) == 11

    async def test_of_a_partition_that_ended_nothing_is_kept(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "_MANY", 1)
        await self.queue(store)
        for partition in "abc":
            await store.publish(NewMessage(b"x", partition_key=partition))
        await store.engine.sweep()
        assert rows("partition") == 3
        for _ in range(2):
            await store.ack(await store.claim_one())
        await store.engine.sweep()
        assert (rows("partition_tally"), rows("partition")) == (0, 1)
        (left,) = (await store.engine.stats(TENANT, "q")).partitions
        assert (left.partition, left.unsettled) == ("c", 1)

    async def test_beside_traffic_and_another_server(
        self, pair: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "_MANY", 3)
        monkeypatch.setattr(compaction, "_MAX_ROWS", 5)
        store, other = pair
        await self.queue(store)
        await store.publish(NewMessage(b"x", partition_key="always"))

        async def use() -> None:
            for number in range(30):
                await store.publish(NewMessage(b"x", partition_key=f"p{number % 4}"))
                await store.ack(await store.claim_one())

        def check(stats: QueueStats) -> None:
            assert 1 <= sum(part.unsettled for part in stats.partitions) <= 2
            assert all(part.unsettled > 0 for part in stats.partitions)

        await beside_sweeps(store, other, use(), check)
        # What is not added up concerns no more partitions than it is.
        assert rows("partition_tally") <= 3
        assert rows("partition") <= 1 + rows("partition_tally")
        (left,) = (await store.engine.stats(TENANT, "q")).partitions
        assert left.unsettled == 1


class TestDropped:
    """Nothing is left of a queue that was deleted."""

    TABLES = ("run", "tally", "partition", "partition_tally", "consumer", "owner", "replayed")

    async def fill(self, store: Store) -> None:
        policy = QueuePolicy(filter="TRUE", ordering=Ordering.PARTITION)
        await store.engine.put_queue(TENANT, "q", policy, Start())
        for number in range(6):
            await store.publish(NewMessage(b"x", partition_key=f"p{number}"))
        await store.engine.join(TENANT, "q", "c")
        await store.reject(await store.claim_one())
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 1, replay_id="r")
        sql("INSERT INTO penstock_partition SELECT number, 'p', 1 FROM penstock_queue")
        assert all(rows(table) for table in self.TABLES)

    async def test_it_vanishes(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "_MAX_ROWS", 2)
        monkeypatch.setattr(retention, "_MAX_SWEPT", 5)
        await self.fill(store)
        await store.engine.delete_queue(TENANT, "q")
        assert (await store.engine.sweep()).more
        await sweep_all(store)
        assert [table for table in self.TABLES if rows(table)] == []
        await sweep_all(store)
        assert rows("dropped") == 1
        clock.advance(HOUR_MS)
        await sweep_all(store)
        assert rows("dropped") == 0

    async def test_what_a_late_publish_adds_vanishes_too(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.queue("other")
        await self.fill(store)
        ((number,),) = sql("SELECT number FROM penstock_queue WHERE name = 'q'")
        await store.engine.delete_queue(TENANT, "q")
        await sweep_all(store)

        async def add(work: Work) -> None:
            (segment, *_) = segments()
            work.add(int(number), Phase.FRESH, 5, segment, [0], DeliveryRecord(joined_at=work.now))

        await core_of(store).transact(TENANT, add)
        assert rows("run", f"queue = {number}") == 1
        clock.advance(retention._PAUSE_MS)
        await sweep_all(store)
        assert rows("run", f"queue = {number}") == rows("tally", f"queue = {number}") == 0
        assert rows("run") > 0

    async def test_an_idle_sweep_does_not_look_at_it_again(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await self.fill(store)
        await store.engine.delete_queue(TENANT, "q")
        await sweep_all(store)
        await sweep_all(store)
        counting = Counting(store, monkeypatch)
        await store.engine.sweep()
        assert counting.seen["remove_dropped_groups"] == 0
        assert counting.seen.total() <= 6, counting.seen
