"""Writes that are one statement: what they check, and what becomes of them when it does not hold.

PostgreSQL alone has them. Another session holds a lock where a write has to wait in the middle, or
another server acts between what a verb reads and what it writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.errors import CommitFailed
from penstock.model.delivery import Ack, Nack, Reject, Release
from penstock.model.message import NewMessage
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.storage.contract import Engine
from penstock.storage.sql.core import Core, Timers
from penstock.storage.sql.database import NeedsTransaction, RowChanged, Stale
from penstock.storage.sql.postgresql.session import PostgreSQLSession
from penstock.testing.laws import law
from tests.databases import server
from tests.unit.storage.sql.callers import caller
from tests.unit.storage.sql.pairs import (
    LATEST,
    NAME,
    TENANT,
    Pair,
    claim,
    opened_pair,
    payloads,
    publish,
    settled,
)

#: Inserts wait for it, and nothing else that a test does meanwhile.
LOCK = "LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with opened_pair("postgresql") as found:
        # Both have claimed from the queue before.
        for engine in (found.a, found.b):
            held = await claim(engine, "old")
            await settled(engine, "old", *(Release(one.receipt) for one in held))
        yield found


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether time has anything to do, which needs a transaction."""
    monkeypatch.setattr(Timers, "is_due", lambda *_: False)


def core(engine: Engine) -> Core:
    found = engine._core  # type: ignore[attr-defined]
    assert isinstance(found, Core)
    return found


@asynccontextmanager
async def blocked(statement: str, act: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """The act, waiting for a lock that another session has; it is let go of at the end."""
    other = await caller("postgresql", NAME)
    await other.begin()
    await other.run(statement)
    task = asyncio.ensure_future(act)
    while (await other.run(WAITING)) == [(0,)]:
        assert not task.done()
        await asyncio.sleep(0.005)
    try:
        yield task
    finally:
        if not other.connection.is_closed():
            await other.roll_back()
        await other.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was begun as a transaction."""
    found: list[str] = []
    begin = PostgreSQLSession._begin

    async def _begin(self: Any) -> None:
        if not self.begun and not self._loose:
            found.append("BEGIN")
        await begin(self)

    monkeypatch.setattr(PostgreSQLSession, "_begin", _begin)
    return found


# -- which are --------------------------------------------------------------------------


@pytest.mark.usefixtures("calm")
async def test_a_plain_publish_claim_and_settle_begin_nothing(pair: Pair, begun: list[str]) -> None:
    await publish(pair.a, "old", b"1", b"2")
    held = await claim(pair.a, "old")
    assert payloads(held) == [b"0", b"1", b"2"]
    assert await settled(pair.a, "old", *(Ack(one.receipt) for one in held)) == ["ok"] * 3
    assert await claim(pair.a, "old") == []
    assert begun == []
    stats = await pair.b.stats(TENANT, "old")
    assert (stats.available, stats.in_flight, stats.done, stats.acks) == (0, 0, 3, 3)


@law("S3")
@pytest.mark.usefixtures("calm")
async def test_only_a_failure_that_is_copied_has_a_transaction(
    pair: Pair, begun: list[str]
) -> None:
    policy = QueuePolicy(filter="topic = 'copied'", dead_letter_topic="dead")
    await pair.a.put_queue(TENANT, "copied", policy, LATEST)
    await pair.a.put_queue(TENANT, "dead", QueuePolicy(filter="topic = 'dead'"), LATEST)
    await publish(pair.a, "copied", b"1", b"2", b"3")
    begun.clear()
    acked, nacked, rejected = await claim(pair.a, "copied")
    assert await settled(pair.a, "copied", Ack(acked.receipt)) == ["ok"]
    assert await settled(pair.a, "copied", Nack(nacked.receipt)) == ["ok"]
    assert begun == []
    assert await settled(pair.a, "copied", Reject(rejected.receipt)) == ["ok"]
    assert len(begun) == 1
    assert payloads(await claim(pair.b, "dead")) == [b"3"]


@pytest.mark.usefixtures("calm")
async def test_what_asks_for_more_than_one_statement_has_a_transaction(
    pair: Pair, begun: list[str]
) -> None:
    messages = [NewMessage(b"1", id="i"), NewMessage(b"2", key="k")]
    for message in messages:
        before = len(begun)
        await pair.a.publish(TENANT, "old", [message])
        assert len(begun) == before + 1
    before = len(begun)
    await pair.a.publish(TENANT, "old", [NewMessage(b"3")], batch_id="b")
    assert len(begun) == before + 1


@pytest.mark.usefixtures("calm")
async def test_what_ends_a_delivery_with_a_key_has_a_transaction(
    pair: Pair, begun: list[str]
) -> None:
    await pair.a.publish(TENANT, "old", [NewMessage(b"1", key="k")])
    begun.clear()
    # Neither a claim nor a return closes the key.
    plain, keyed = await claim(pair.a, "old")
    assert await settled(pair.a, "old", Ack(plain.receipt), Release(keyed.receipt)) == ["ok"] * 2
    (keyed,) = await claim(pair.a, "old")
    assert begun == []
    assert await settled(pair.a, "old", Ack(keyed.receipt)) == ["ok"]
    assert len(begun) == 1
    await pair.a.publish(TENANT, "old", [NewMessage(b"2", key="k")])
    assert payloads(await claim(pair.a, "old")) == [b"2"]
    assert (await pair.b.stats(TENANT, "old")).done == 2


async def test_an_ordered_queue_has_transactions(pair: Pair) -> None:
    policy = QueuePolicy(filter="topic = 'p'", ordering=Ordering.PARTITION)
    await pair.a.put_queue(TENANT, "parts", policy, LATEST)
    await pair.a.publish(TENANT, "p", [NewMessage(b"1", partition_key="x")])
    (held,) = await claim(pair.a, "parts")
    assert await settled(pair.a, "parts", Ack(held.receipt)) == ["ok"]
    assert (await pair.a.stats(TENANT, "parts")).done == 1


async def test_nothing_comes_after_a_write_at_once(pair: Pair) -> None:
    tenant = await core(pair.a).catalog.tenant(TENANT)
    database = core(pair.a).database
    async with database.transaction() as session:
        counts = [(tenant.queues["old"].number, 100, 0)]
        await session.change(tenant.number, (), (), (), counts, version=tenant.version)
        for again in (
            session.fetch("now"),
            session.run("raise_version", tenant=tenant.number),
            session.change(tenant.number, (), (), (), counts, version=tenant.version),
        ):
            with pytest.raises(AssertionError, match="written last"):
                await again


async def test_without_a_transaction_nothing_is_locked_or_written_beside(pair: Pair) -> None:
    tenant = await core(pair.a).catalog.tenant(TENANT)
    async with core(pair.a).database.single_statement() as session:
        for statement in (
            session.run("raise_version", tenant=tenant.number),
            session.fetch("lock_queue", queue=1),
            session.write("put_owners", [(1, b"p", "c", 1)]),
            session.change(tenant.number, (), (), (), ()),
        ):
            with pytest.raises(NeedsTransaction):
                await statement
    with pytest.raises(Stale):
        async with core(pair.a).database.single_statement() as session:
            await session.change(tenant.number, (), (), (), (), version=tenant.version - 1)


# -- a publish and the catalog (R1, L2) -------------------------------------------------


@law("R1")
async def test_a_publish_that_knows_an_older_catalog_writes_nothing_and_is_made_again(
    pair: Pair, begun: list[str]
) -> None:
    await pair.b.put_queue(TENANT, "new", QueuePolicy(filter="topic = 'old'"), LATEST)
    before = await pair.b.log_end(TENANT)
    del begun[:]
    (message,) = await publish(pair.a, "old", b"1")
    assert core(pair.a).repeated == {"conflict": 0, "connection": 0, "catalog": 1}
    assert begun == []
    page = await pair.b.read_log(TENANT, before, 10)
    assert [entry.message.id for entry in page.entries] == [message]
    assert payloads(await claim(pair.b, "new")) == [b"1"]


@law("R1")
async def test_the_catalog_is_read_after_others_can_see_the_publish(pair: Pair) -> None:
    """A queue that is made while a publish waits to be seen is not passed by."""
    ((given,),) = await _asked("SELECT last_value FROM penstock_log_segment_seq")
    lock = f"SELECT pg_advisory_xact_lock({20563 << 48 | given})"
    async with blocked(lock, publish(pair.a, "old", b"1")) as task:
        await pair.b.put_queue(TENANT, "new", QueuePolicy(filter="topic = 'old'"), LATEST)
    await task
    assert payloads(await claim(pair.b, "new")) == [b"1"]


@law("L2")
async def test_a_queue_that_joins_during_a_publish_waits_for_it(pair: Pair) -> None:
    policy = QueuePolicy(filter="topic = 'old'")
    await pair.b.put_queue(TENANT, "late", policy, Start(at=Start.EARLIEST))
    # It knows that the queue is behind, and will not know that it has joined.
    await publish(pair.a, "old", b"1")
    async with blocked(LOCK.format("penstock_log"), publish(pair.a, "old", b"2")) as task:
        seen = await core(pair.b).database.stable()
        assert seen.oldest is not None
        for _ in range(3):
            assert (await pair.b.route(TENANT, "late", 100)).cursor is not None
    await task
    while (await pair.b.route(TENANT, "late", 100)).cursor is not None:
        pass
    assert payloads(await claim(pair.b, "late")) == [b"0", b"1", b"2"]
    await publish(pair.a, "old", b"3")
    assert payloads(await claim(pair.b, "late")) == [b"3"]


# -- claims and settles that others come in the way of (C1, S1) -------------------------


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """Act once, between the next claim's look at the queue and its write."""
    heads = PostgreSQLSession.first_groups
    left = [act]

    async def look(self: Any, *args: Any) -> Any:
        rows = await heads(self, *args)
        if left and self._loose:
            await left.pop()()
        return rows

    monkeypatch.setattr(PostgreSQLSession, "first_groups", look)


@law("C1")
@pytest.mark.parametrize("taken", [1, 3, 5])
@pytest.mark.usefixtures("calm")
async def test_what_another_server_claims_meanwhile_is_not_handed_out_twice(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, begun: list[str], taken: int
) -> None:
    await publish(pair.a, "old", b"1", b"2", b"3", b"4")
    theirs: list[Any] = []

    async def other() -> None:
        theirs.extend(await claim(pair.b, "old", taken))

    between(monkeypatch, other)
    core(pair.a).fronts.clear()
    ours = await claim(pair.a, "old", 10)
    assert payloads(theirs) + payloads(ours) == [b"0", b"1", b"2", b"3", b"4"]
    assert len(theirs) == taken
    # The first was handed out twice before all of this.
    attempts = {one.payload: one.attempts for one in (*theirs, *ours)}
    assert attempts == {b"0": 3, b"1": 1, b"2": 1, b"3": 1, b"4": 1}
    assert core(pair.a).repeated["conflict"] == 1
    # For a while the queue is claimed from in transactions, and then it is tried again.
    del begun[:]
    await claim(pair.a, "old")
    assert begun == ["BEGIN"]
    pair.clock.advance(6_000)
    del begun[:]
    await claim(pair.a, "old")
    assert begun == []
    for engine, held in ((pair.a, ours), (pair.b, theirs)):
        verdicts = await settled(engine, "old", *(Ack(one.receipt) for one in held))
        assert verdicts == ["ok"] * len(held)


@law("C4")
@pytest.mark.usefixtures("calm")
async def test_what_is_locked_by_others_is_left_to_a_transaction(pair: Pair) -> None:
    await publish(pair.a, "old", b"1")
    other = await caller("postgresql", NAME)
    await other.begin()
    await other.run("SELECT * FROM penstock_run ORDER BY row_key LIMIT 1 FOR UPDATE")
    assert payloads(await claim(pair.a, "old")) == [b"1"]
    await other.roll_back()
    await other.close()
    assert payloads(await claim(pair.a, "old")) == [b"0"]


@law("C1")
@pytest.mark.usefixtures("calm")
async def test_a_pause_meanwhile_holds(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    between(monkeypatch, lambda: pair.b.pause(TENANT, "old", True))
    core(pair.a).fronts.clear()
    assert await claim(pair.a, "old") == []
    assert (await pair.a.stats(TENANT, "old")).in_flight == 0


@law("S1")
async def test_a_claim_that_lapsed_elsewhere_cannot_be_settled_from_memory(pair: Pair) -> None:
    (ours,) = await claim(pair.a, "old", lease_ms=1_000)
    pair.clock.advance(1_001)
    (theirs,) = await claim(pair.b, "old")
    assert await settled(pair.a, "old", Ack(ours.receipt)) == ["stale"]
    assert await settled(pair.b, "old", Ack(theirs.receipt)) == ["ok"]
    assert core(pair.a).repeated["conflict"] == 1


@law("S2")
async def test_some_that_were_settled_elsewhere_and_some_that_were_not(pair: Pair) -> None:
    await publish(pair.a, "old", *(b"%d" % n for n in range(1, 6)))
    held = await claim(pair.a, "old")
    assert len(held) == 6
    # Of those that follow each other only the number is kept: what is left at the end counts.
    assert await settled(pair.b, "old", Ack(held[5].receipt), Nack(held[1].receipt)) == ["ok"] * 2
    verdicts = await settled(pair.a, "old", *(Ack(one.receipt) for one in held))
    assert verdicts == ["ok", "stale", "ok", "ok", "ok", "ok"]
    stats = await pair.b.stats(TENANT, "old")
    assert (stats.done, stats.acks, stats.in_flight) == (5, 5, 0)


@law("S1")
@pytest.mark.usefixtures("calm")
async def test_what_is_left_of_a_claim_is_remembered(pair: Pair, begun: list[str]) -> None:
    await publish(pair.a, "old", b"1", b"2", b"3")
    held = await claim(pair.a, "old")
    for one in reversed(held):
        assert await settled(pair.a, "old", Ack(one.receipt)) == ["ok"]
    assert begun == []
    # Done is not in flight any more: this is looked up.
    assert await settled(pair.a, "old", Ack(held[0].receipt)) == ["ok"]
    assert await settled(pair.a, "old", Release(held[0].receipt)) == ["stale"]
    assert len(begun) == 2


# -- a connection that is lost (P2) -----------------------------------------------------


@law("P2")
async def test_a_publish_whose_connection_is_lost_has_an_unknown_outcome(pair: Pair) -> None:
    async with blocked(LOCK.format("penstock_tally"), publish(pair.a, "old", b"1")) as task:
        await asyncio.to_thread(server("postgresql").kill_backends, NAME)
        with pytest.raises(CommitFailed):
            await task
    assert payloads(await claim(pair.a, "old")) == [b"0"]


@law("C1")
@pytest.mark.usefixtures("calm")
async def test_a_claim_whose_connection_is_lost_is_not_half_done(pair: Pair) -> None:
    async with blocked(LOCK.format("penstock_tally"), claim(pair.a, "old")) as task:
        await asyncio.to_thread(server("postgresql").kill_backends, NAME)
        with pytest.raises(CommitFailed):
            await task
    (held,) = await claim(pair.a, "old")
    assert held.payload == b"0"
    async with blocked(
        LOCK.format("penstock_tally"), settled(pair.a, "old", Ack(held.receipt))
    ) as task:
        await asyncio.to_thread(server("postgresql").kill_backends, NAME)
        with pytest.raises(CommitFailed):
            await task
    assert await settled(pair.a, "old", Ack(held.receipt)) == ["ok"]


async def test_held_runs_are_compared_as_a_whole(pair: Pair) -> None:
    await publish(pair.a, "old", b"1", b"2", b"3")
    tenant = await core(pair.a).catalog.tenant(TENANT)
    database = core(pair.a).database
    queue = tenant.queues["old"].number
    async with database.single_statement() as session:
        row = (await session.first_groups(queue, [0], [], 10))[-1]
    for position, other in ((5, row[5] - 1), (9, b"\x01\x00"), (10, row[10] + b"x"), (3, 7)):
        wrong = [*row]
        wrong[position] = other
        with pytest.raises(RowChanged):
            async with database.single_statement() as session:
                await session.change(
                    *(tenant.number, (), [tuple(row[:4])], (), ()),
                    held=[wrong],
                    version=tenant.version,
                )
    assert len(await claim(pair.a, "old")) == 4


async def _asked(statement: str) -> Any:
    other = await caller("postgresql", NAME)
    try:
        return await other.run(statement)
    finally:
        await other.close()
