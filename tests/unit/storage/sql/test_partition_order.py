"""Ordered queues on two servers that share a database: what is handed out, and at what cost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.model.delivery import Delivery
from penstock.model.message import MessageId
from penstock.model.states import State
from penstock.storage.sql.postgresql import adapter
from penstock.storage.sql.postgresql.session import PostgreSQLSession
from penstock.storage.sql.statements import load
from penstock.storage.sql.work import Work
from penstock.testing.conformance.harness import TENANT, Store, ids_of, msg
from penstock.testing.conformance.ready import Ear
from penstock.testing.laws import law
from penstock.testing.model import Oracle
from tests.unit.storage.sql.ordered import Pair, core_of, fill, opened_pair, ordered, store


@pytest.fixture(params=["postgresql", "mysql"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with opened_pair(request.param) as pair:
        yield pair


async def settle(one: Store, delivery: Delivery, random: Random) -> bool:
    """End the claim in one way or another; whether it is done."""
    match random.randint(0, 9):
        case 0:
            one.clock.advance(5000)  # Its lease may lapse for want of an answer.
        case 1:
            await one.nack(delivery, delay_ms=random.choice([0, 10]))
        case 2:
            await one.release(delivery)
        case _:
            return (await one.ack(delivery)).ok
    return False


@law("C4")
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_order_holds_while_everybody_works_at_once(pair: Pair, concurrency: int) -> None:
    """Consumers of both servers claim, settle, stall, come and go."""
    await ordered(pair.first, concurrency=concurrency, max_attempts=10_000)
    published: Counter[str] = Counter()
    acked: dict[str, list[MessageId]] = defaultdict(list)

    async def publish(one: Store, random: Random) -> None:
        for _ in range(12):
            names = [random.choice("abcd") for _ in range(random.randint(1, 4))]
            published.update(names)
            await one.publish(*(msg(partition_key=p, priority=random.randint(0, 9)) for p in names))

    async def work(one: Store, name: str, random: Random) -> None:
        while sum(map(len, acked.values())) < published.total():
            for delivery in await one.claim(limit=random.randint(1, 4), consumer=name):
                if await settle(one, delivery, random):
                    acked[delivery.message.partition_key or ""].append(delivery.message.id)
            if random.random() < 0.05:
                await one.engine.leave(TENANT, "q", name)
            pair.clock.advance(random.randint(0, 20))

    both = list(enumerate((pair.first, pair.second)))
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(publish(one, Random(n)) for n, one in both),
            *(work(one, f"c{n}{k}", Random(10 * n + k)) for n, one in both for k in (1, 2)),
        )
    for partition, ids in acked.items():
        assert len(ids) == len(set(ids)) == published[partition]
        assert concurrency > 1 or ids == sorted(ids)
    # Everybody locks in one order, so nobody had to be thrown out.
    assert [core_of(one).repeated["conflict"] for _, one in both] == [0, 0]


@law("C4")
@pytest.mark.parametrize(
    "concurrency, batch", [(1, 1), (2, 1), (7, 1), (1000, 1), (1, 3), (1, 1000)]
)
async def test_what_is_given_is_what_the_oracle_gives(
    pair: Pair, concurrency: int, batch: int
) -> None:
    """Deep partitions, runs that interleave in their segments, limits of every size.

    Now and then ``max_attempts`` is lowered, so that claims fail deliveries.
    """
    oracle = store("", pair.clock)
    oracle.engine = Oracle(oracle.options)
    both = (pair.first, oracle)
    for one in both:
        await ordered(one, concurrency=concurrency, batch=batch)
    random = Random(concurrency + batch)
    held: list[tuple[Delivery, Delivery]] = []
    number = 0
    for turn in range(60):
        if turn < 20:
            messages = []
            for _ in range(random.choice([1, 1, 2, 12])):
                number += 1
                delay = random.choice([0, 0, 0, 200])
                messages.append(
                    msg(
                        b"%d" % number,
                        partition_key=random.choice("aaab"),
                        priority=random.randint(3, 5),
                        deliver_at=pair.clock.now() + delay,
                        expires_at=random.choice([None, None, pair.clock.now() + 700]),
                    )
                )
            for one in both:
                await one.publish(*messages)
        if turn % 4 == 0:
            most = random.choice([1, 2, 9])
            for one in both:
                await ordered(one, concurrency=concurrency, batch=batch, max_attempts=most)
        limit, consumer = random.choice([1, 2, 5, 40]), random.choice("xy")
        given = [await one.claim(limit=limit, consumer=consumer) for one in both]
        assert [d.payload for d in given[0]] == [d.payload for d in given[1]]
        held += zip(*given, strict=True)
        random.shuffle(held)
        for pairs in held[: random.randint(0, 12)]:
            way = random.choice(["ack", "ack", "nack", "release"])
            outcomes = []
            for one, delivery in zip(both, pairs, strict=True):
                if way == "ack":
                    outcome = await one.ack(delivery)
                elif way == "nack":
                    outcome = await one.nack(delivery, delay_ms=100)
                else:
                    outcome = await one.release(delivery)
                outcomes.append((outcome.verdict, outcome.state))
            assert outcomes[0] == outcomes[1]
        del held[:12]
        pair.clock.advance(random.choice([0, 50, 400]))
        shown = [(await one.engine.stats(TENANT, "q")).partitions for one in both]
        assert [replace(p, watermark=0) for p in shown[0]] == [
            replace(p, watermark=0) for p in shown[1]
        ]


@law("C4")
async def test_what_came_back_waits_for_what_is_fresh_before_it(pair: Pair) -> None:
    """Both are read a few segments at a time, and the fresh ones may reach less far."""
    await ordered(pair.first, concurrency=100)
    ids = [(await fill(pair.first, "a"))["a"][0] for _ in range(20)]
    ids += await pair.first.publish(msg(partition_key="a", deliver_at=pair.clock.now() + 10))
    pair.clock.advance(10)
    assert ids_of(await pair.first.claim(limit=5)) == ids[:5]
    assert ids_of(await pair.first.claim(limit=50)) == ids[5:]


@law("C3")
async def test_more_than_a_claim_expires_is_left_to_the_next(pair: Pair) -> None:
    await ordered(pair.first)
    now = pair.clock.now()
    messages = [msg(partition_key="a", expires_at=now + 1 + n) for n in range(700)]
    *_, last = await pair.first.publish(*messages, msg(b"last", partition_key="a"))
    ear = pair.first.engine.listener = Ear()
    pair.clock.advance(10_000)
    looks = 1
    while not (claimed := await pair.first.claim()):
        assert "q" in ear.heard()
        looks += 1
    assert ids_of(claimed) == [last]
    assert looks < 10
    assert len(await pair.first.ids("q", State.EXPIRED)) == 700


@law("C4")
async def test_what_a_purge_takes_away_meanwhile_is_not_handed_out(pair: Pair) -> None:
    await ordered(pair.first)
    ids = await fill(pair.first, *"aab")
    core, purged, go_on = core_of(pair.first), asyncio.Event(), asyncio.Event()

    async def purge_one(work: Work) -> None:
        queue, _ = work.tenant.find("q")
        rows = await work.session.fetch(
            "lock_groups", queue=queue.number, phase=0, rank=5, row_keys=[int(ids["a"][0])]
        )
        (run,) = work.hold_all(rows)
        work.drop(run, [run.members[0]])
        await work.write()
        purged.set()
        await go_on.wait()

    purging = asyncio.create_task(core.transact(TENANT, purge_one))
    await purged.wait()
    claiming = asyncio.create_task(pair.second.claim(limit=9))
    _, waiting = await asyncio.wait([claiming], timeout=0.3)
    assert waiting, "it has to wait for what it has chosen"
    go_on.set()
    await purging
    assert ids_of(await claiming) == [ids["a"][1], ids["b"][0]]


# -- what it costs in PostgreSQL -------------------------------------------------------


@pytest.fixture
async def postgresql() -> AsyncIterator[Pair]:
    async with opened_pair("postgresql") as pair:
        yield pair


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements that are run, by name."""
    names: list[str] = []
    fetch, run, change = PostgreSQLSession.fetch, PostgreSQLSession.run, PostgreSQLSession.change

    async def count_fetch(self: Any, statement: str, **parameters: object) -> Any:
        names.append(statement)
        return await fetch(self, statement, **parameters)

    async def count_run(self: Any, statement: str, **parameters: object) -> Any:
        names.append(statement)
        return await run(self, statement, **parameters)

    async def count_change(self: Any, *arguments: Any) -> Any:
        names.append("change")
        return await change(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PostgreSQLSession, "fetch", count_fetch)
        patch.setattr(PostgreSQLSession, "run", count_run)
        patch.setattr(PostgreSQLSession, "change", count_change)
        yield names


async def test_a_heartbeat_that_changes_nothing_takes_few_statements(
    postgresql: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ordered(postgresql.first)
    await fill(postgresql.first, *"ab" * 5)
    assert len(await postgresql.first.claim(limit=9)) == 2
    postgresql.clock.advance(1)
    with counted(monkeypatch) as names:
        assert await postgresql.first.claim(limit=9) == []
    assert names == [
        "lock_queue",
        "list_consumers",
        "put_consumer",
        "list_partitions",
        "partition_first_groups",
        "change",
    ]


def blocks(plan: dict[str, Any]) -> int:
    """How many pages a plan touched."""
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for below in plan.get("Plans", ()) for node in nodes(below))]


@pytest.mark.parametrize("analyzed", [False, True])
async def test_no_look_at_partitions_reads_what_they_hold(postgresql: Pair, analyzed: bool) -> None:
    """100 000 runs in four partitions: a few pages, with statistics of the table and without any.

    Statistics of a smaller table are another matter: partition_groups then reads thousands.
    So autovacuum, and what it or earlier tests left behind, must not decide which case this is.
    """
    postgresql.sql(
        """ALTER TABLE penstock_run SET (autovacuum_enabled = false);
        ALTER TABLE penstock_owner SET (autovacuum_enabled = false);
        TRUNCATE penstock_run, penstock_owner;
        DELETE FROM pg_statistic
        WHERE starelid IN ('penstock_run'::regclass, 'penstock_owner'::regclass)"""
    )
    await ordered(postgresql.first)
    await fill(postgresql.first, *"abcd")
    await postgresql.first.engine.join(TENANT, "q", "x")
    queue, _ = (await core_of(postgresql.first).catalog.tenant(TENANT)).find("q")
    postgresql.sql(
        f"""INSERT INTO penstock_run
        SELECT {queue.number}, i % 2, 5, (1000000 + i)::bigint << 14, 1000000 + i, 1, NULL,
            chr(97 + i % 4)::bytea, NULL, '\\x0000', '\\x00'
        FROM generate_series(1, 100000) AS i"""
    )
    if analyzed:
        postgresql.sql("ANALYZE penstock_run; ANALYZE penstock_owner")
    given = {
        "queue": str(queue.number),
        "consumer": "'x'",
        "partitions": "ARRAY['a', 'b', 'c', 'd']::bytea[]",
        "most": "4",
    }
    statements = load("postgresql")
    try:
        async with core_of(postgresql.first).database.reading() as session:
            connection = session._connection  # type: ignore[attr-defined]
            for name in (
                "list_partitions",
                "partition_first_groups",
                "partition_groups",
                "partitions_in_flight",
                "forget_owners",
                "partition_stats",
            ):
                text, names = adapter._positional(statements[name])
                await connection.execute(f"PREPARE looked AS {text}")
                arguments = ", ".join(given[n] for n in names)
                ((found,),) = await connection.fetch(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE looked ({arguments})"
                )
                await connection.execute("DEALLOCATE looked")
                plan = json.loads(found)[0]["Plan"]
                assert "Seq Scan" not in {node["Node Type"] for node in nodes(plan)}, name
                assert blocks(plan) < 200, name
    finally:
        postgresql.sql("DELETE FROM penstock_run WHERE record = '\\x00'")
        postgresql.sql(
            """ALTER TABLE penstock_run RESET (autovacuum_enabled);
            ALTER TABLE penstock_owner RESET (autovacuum_enabled)"""
        )
