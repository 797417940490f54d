"""MySQL's own: tickets, locks, connections, callers' transactions. Run on MariaDB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from penstock.errors import (
    BadInput,
    StoreBusy,
)
from penstock.storage.sql.database import (
    ConnectionLost,
    Database,
    RetryTransaction,
    Session,
    Stable,
)
from penstock.storage.sql.deliveries import Phase, Row
from penstock.storage.sql.mysql import tickets
from penstock.storage.sql.mysql.adapter import MySQL
from penstock.storage.sql.urls import parse
from penstock.testing.laws import law
from tests.databases import server, store_url
from tests.unit.storage.sql.callers import caller

NAME: Final = "mysql_own"
SEGMENT: Final = (1, 1_000, 1, b"heads", b"payloads")
#: In seconds, longer than anything here takes that nobody has to wait for.
SOON_S: Final = 30


@pytest.fixture
async def database() -> AsyncIterator[MySQL]:
    found = await MySQL.open(parse(store_url("mysql", NAME)))
    sql("INSERT INTO penstock_tenant (number, name) VALUES (1, 't')")
    yield found
    await found.close()


def sql(statements: str) -> list[list[str]]:
    return server("mysql").sql(statements, NAME)


async def documents(database: Database) -> list[Any]:
    async with database.reading() as session:
        return [tuple(row) for row in await session.fetch("list_documents", kind="k")]


async def version(session: Session) -> int:
    """Of the catalog of the first tenant."""
    ((found,),) = await session.fetch("version", tenant=1)
    return int(found)


def run(queue: int, phase: Phase, place: int, until: int | None = None) -> Row:
    return Row(queue, phase, 5, place, place, 1, until, None, None, b"\0\0", b"life")


# -- the settled prefix of the log -----------------------------------------------------


async def _publish(database: Database) -> int:
    async with database.transaction() as session:
        await session.publishing()
        (number,) = await session.append([SEGMENT])
    return number


class _Open:
    """A publish that stays open until it is told how to end."""

    def __init__(self, database: Database) -> None:
        self._transaction = database.transaction()
        self.session: Session
        self.number = 0

    async def begin(self) -> None:
        self.session = await self._transaction.__aenter__()
        await self.session.publishing()

    async def append(self) -> int:
        (self.number,) = await self.session.append([SEGMENT])
        return self.number

    async def commit(self) -> None:
        await self._transaction.__aexit__(None, None, None)

    async def roll_back(self) -> None:
        assert not await self._transaction.__aexit__(RuntimeError, RuntimeError("enough"), None)


@law("L2")
async def test_an_empty_log(database: MySQL) -> None:
    settled, given, oldest = await database.stable()
    assert (settled, oldest) == (given, None)


@law("L2")
async def test_an_open_publish_holds_readers_back_and_nobody_else(database: MySQL) -> None:
    before = await _publish(database)
    slow = _Open(database)
    await slow.begin()
    assert await database.stable() == Stable(before, before, before)
    first = await slow.append()
    async with asyncio.timeout(SOON_S):
        later = [await _publish(database) for _ in range(5)]
    assert before < first < later[0]
    assert await database.stable() == Stable(before, later[-1], before)
    await slow.commit()
    assert await database.stable() == Stable(later[-1], later[-1], None)


@law("L2")
async def test_a_publish_that_is_undone_holds_nobody_back(database: MySQL) -> None:
    before = await _publish(database)
    slow = _Open(database)
    await slow.begin()
    number = await slow.append()
    await slow.roll_back()
    # Its number will never appear.
    assert await database.stable() == Stable(number, number, None)
    assert await _publish(database) > number > before


@law("L2")
async def test_the_oldest_of_several_counts(database: MySQL) -> None:
    first = await _publish(database)
    one = _Open(database)
    await one.begin()
    second = await _publish(database)
    two = _Open(database)
    await two.begin()
    last = await two.append()
    assert (await database.stable()) == Stable(first, last, first)
    await one.commit()
    assert (await database.stable()) == Stable(second, last, second)
    await two.commit()
    assert (await database.stable()) == Stable(last, last, None)


@law("L2")
async def test_what_was_given_out_is_known_when_the_log_is_empty(database: MySQL) -> None:
    numbers = [await _publish(database) for _ in range(3)]
    async with database.transaction() as session:
        await session.run("remove_segments", numbers=numbers)
    assert await database.stable() == Stable(numbers[-1], numbers[-1], None)


async def test_tickets_are_cleared_away(database: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "_MANY", 5)
    slow = _Open(database)
    await slow.begin()
    for _ in range(20):
        await _publish(database)
        await asyncio.sleep(0.01)
    left = int(sql("SELECT COUNT(*) FROM penstock_ticket")[0][0])
    assert left < 15
    # That of the open one stays, and nobody waits for it.
    stable = await database.stable()
    assert stable.oldest is not None
    number = await slow.append()
    assert (await database.stable()).settled < number
    await slow.commit()
    await database._tickets.clear()
    assert sql("SELECT COUNT(*) FROM penstock_ticket") == [["0"]]
    assert await database.stable() == Stable(number, number, None)


async def test_tickets_that_others_left_are_cleared_away(
    database: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tickets, "_MANY", 5)
    sql("INSERT INTO penstock_ticket SELECT seq, 0 FROM seq_1_to_10")
    await database.stable()
    assert database._tickets._clearing is not None
    await asyncio.wait([database._tickets._clearing])
    assert sql("SELECT COUNT(*) FROM penstock_ticket") == [["0"]]


# -- locks -----------------------------------------------------------------------------


@law("C4")
async def test_looking_for_what_is_due_locks_nothing_else(database: MySQL) -> None:
    async with database.transaction() as session:
        await session.change(
            1,
            [],
            [],
            [
                run(1, Phase.FRESH, 10),
                run(1, Phase.FRESH, 20),
                run(1, Phase.IN_FLIGHT, 30, until=500),
                run(1, Phase.IN_FLIGHT, 40, until=5_000),
                run(2, Phase.FRESH, 10),
            ],
            [],
        )
    async with database.transaction() as session:
        due = await session.due_groups(1, [0, 1, 2, 3], 1_000, 10)
        assert [row[3] for row in due] == [30]
        async with database.transaction() as other:
            for queue, places in ((1, [10, 20]), (2, [10])):
                rows = await other.first_groups(queue, [Phase.FRESH, Phase.RETURNED], [0, 0], 5)
                assert [row[3] for row in rows] == places
            rows = await other.fetch("lock_groups", queue=1, phase=3, rank=5, row_keys=[40])
            assert [row[3] for row in rows] == [40]
            assert not await other.due_groups(1, [0, 1, 2, 3], 1_000, 10)


@law("C1")
async def test_claims_pass_by_what_others_hold_and_no_more(database: MySQL) -> None:
    async with database.transaction() as session:
        await session.change(1, [], [], [run(1, Phase.FRESH, n) for n in range(1, 7)], [])
    async with database.transaction() as one, database.transaction() as two:
        assert [row[3] for row in await one.first_groups(1, [0, 1], [0, 0], 2)] == [1, 2]
        assert [row[3] for row in await two.first_groups(1, [0, 1], [0, 0], 2)] == [3, 4]
        await one.change(
            1, [], [(1, 0, 5, 1)], [run(1, Phase.IN_FLIGHT, 99, until=9)], [(1, 1, -1)]
        )
        assert [row[3] for row in await two.first_groups(1, [0, 1], [0, 0], 9)] == [3, 4, 5, 6]


@law("O1")
async def test_what_is_published_meanwhile_keeps_no_settle_waiting(database: MySQL) -> None:
    sql("INSERT INTO penstock_owner VALUES (1, 'p', 'c', 1), (1, 'q', 'c', 2)")
    async with database.transaction() as publish:
        await publish.change(1, [], [], [run(1, Phase.FRESH, 1)._replace(partition_key=b"p")], [])
        async with asyncio.timeout(SOON_S), database.transaction() as settle:
            assert await settle.forget_owners(1, [b"p", b"q"]) == 2
    sql("INSERT INTO penstock_owner VALUES (1, 'p', 'c', 1)")
    async with database.transaction() as settle:
        assert await settle.forget_owners(1, [b"p"]) == 0


@law("P4")
async def test_ids_that_somebody_holds_are_passed_by(database: MySQL) -> None:
    ids = [(1, 0, "t", name, 1, until, 7) for name, until in ((b"a", 1), (b"b", 2), (b"c", 9))]
    async with database.transaction() as session:
        await session.write("claim_ids", ids)
    async with database.transaction() as holder:
        await holder.fetch("read_ids", tenant=1, kind=0, topic="t", ids=[b"a"])
        async with asyncio.timeout(SOON_S), database.transaction() as sweep:
            assert await sweep.run("forget_overdue_ids", now=5, most=10) == 1
    assert sql("SELECT id FROM penstock_id ORDER BY id") == [["a"], ["c"]]


async def test_a_deadlock_is_made_again(database: MySQL) -> None:
    async with database.transaction() as session:
        await session.change(1, [], [], [run(1, Phase.FRESH, 1), run(1, Phase.FRESH, 2)], [])

    async def lock(session: Session, place: int) -> None:
        await session.fetch("lock_groups", queue=1, phase=0, rank=5, row_keys=[place])

    async def cross(first: int, second: int, met: asyncio.Barrier) -> str:
        try:
            async with database.transaction() as session:
                await lock(session, first)
                await met.wait()
                await lock(session, second)
        except RetryTransaction as again:
            return str(again)
        return "done"

    met = asyncio.Barrier(2)
    victim, other = sorted(await asyncio.gather(cross(1, 2, met), cross(2, 1, met)))
    assert "Deadlock" in victim
    assert other == "done"


# -- connections -----------------------------------------------------------------------


async def test_whoever_is_cancelled_leaves_nothing_open(database: MySQL) -> None:
    async def hold(entered: asyncio.Event, *, waiting: bool) -> None:
        async with database.transaction() as session:
            await session.run("raise_version", tenant=1)
            entered.set()
            if waiting:
                link = await session._linked()  # type: ignore[attr-defined]
                await link.execute("SELECT SLEEP(30)")
            else:
                await asyncio.sleep(30)

    for waiting in (False, True):
        entered = asyncio.Event()
        task = asyncio.create_task(hold(entered, waiting=waiting))
        await entered.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if not waiting:
            async with asyncio.timeout(SOON_S), database.transaction() as session:
                assert await version(session) == 1
                await session.run("raise_version", tenant=1)
                assert await version(session) == 2
    async with asyncio.timeout(SOON_S), database.reading() as session:
        assert await version(session) == 2


async def test_an_error_rolls_back_and_keeps_the_connection(database: MySQL) -> None:
    links = []

    async def fail() -> None:
        async with database.transaction() as session:
            await session.run("raise_version", tenant=1)
            links.append(await session._linked())  # type: ignore[attr-defined]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with database.transaction() as session:
        assert await session._linked() is links[0]  # type: ignore[attr-defined]
        assert await version(session) == 1


async def test_lost_connections_are_not_tried_one_by_one(database: MySQL) -> None:
    async def read(session: Session) -> None:
        await session.fetch("now")

    async with database.reading() as one, database.reading() as two, database.reading() as three:
        await asyncio.gather(read(one), read(two), read(three))
    await asyncio.to_thread(server("mysql").kill_backends, NAME)
    with pytest.raises(ConnectionLost) as lost:
        await database.now()
    assert not lost.value.committing
    assert await database.now() > 0
    assert (await database.stable()).settled >= 0


async def test_who_finds_no_connection_waits() -> None:
    url = store_url("mysql", NAME)
    database = await MySQL.open(parse(f"{url}?pool=1"))
    async with database.transaction() as session:
        await session.fetch("now")
        waiting = asyncio.create_task(database.now())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        # That needs none of the pool.
        await database.stable()
    assert await asyncio.wait_for(waiting, SOON_S) > 0
    await database.close()


async def test_the_time_is_the_servers(database: MySQL) -> None:
    ((text,),) = sql("SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)")
    assert 0 <= await database.now() - int(text) < 10_000


# -- the caller's own transaction ------------------------------------------------------


async def test_a_caller_without_autocommit_has_a_transaction(database: MySQL) -> None:
    own = await caller("mysql", NAME)
    await own.connection.autocommit(False)
    async with database.borrowed(own.connection) as session:
        await session.publishing()
        (number,) = await session.append([SEGMENT])
    assert (await database.stable()).settled < number
    await own.commit()
    assert (await database.stable()).settled == number
    await own.close()


@law("P2")
async def test_what_fails_is_undone_and_the_callers_own_is_kept(database: MySQL) -> None:
    own = await caller("mysql", NAME)
    await own.begin()
    await own.run("INSERT INTO penstock_document VALUES ('k', 'own', 'v')")

    async def fail() -> None:
        async with database.borrowed(own.connection) as session:
            await session.publishing()
            await session.append([SEGMENT])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert (await database.stable()).oldest is None
    await own.commit()
    assert await documents(database) == [("own", b"v")]
    assert sql("SELECT COUNT(*) FROM penstock_log") == [["0"]]
    await own.close()


@law("P2")
async def test_a_deadlock_undoes_all_and_says_so(database: MySQL) -> None:
    async with database.transaction() as session:
        await session.change(1, [], [], [run(1, Phase.FRESH, 1), run(1, Phase.FRESH, 2)], [])
    own = await caller("mysql", NAME)
    await own.begin()
    await own.run("INSERT INTO penstock_document VALUES ('k', 'own', 'v')")

    async def other(locked: asyncio.Event) -> None:
        async with database.transaction() as session:
            # Whoever has changed less is the victim of a deadlock.
            await session.change(1, [], [], [run(1, Phase.DONE, n) for n in range(200)], [])
            await session.fetch("lock_groups", queue=1, phase=0, rank=5, row_keys=[2])
            await met.wait()
            locked.set()
            await session.fetch("lock_groups", queue=1, phase=0, rank=5, row_keys=[1])

    async def cross(locked: asyncio.Event) -> None:
        async with database.borrowed(own.connection) as session:
            await session.fetch("lock_groups", queue=1, phase=0, rank=5, row_keys=[1])
            met.set()
            await locked.wait()
            await session.fetch("lock_groups", queue=1, phase=0, rank=5, row_keys=[2])

    met, locked = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(other(locked))
        with pytest.raises(StoreBusy, match="whole transaction"):
            await cross(locked)
    await own.commit()
    assert await documents(database) == []
    await own.close()


@law("E1")
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE", "READ UNCOMMITTED"])
async def test_other_isolation_is_refused(database: MySQL, isolation: str) -> None:
    own = await caller("mysql", NAME)
    await own.begin(isolation)
    with pytest.raises(BadInput, match=isolation.replace(" ", "-")):
        async with database.borrowed(own.connection):
            pytest.fail("it was let in")
    await own.close()


async def test_what_is_prepared_on_a_callers_connection_is_forgotten(database: MySQL) -> None:
    own = await caller("mysql", NAME)
    await own.begin()
    async with database.borrowed(own.connection) as session:
        await session.publishing()
    ((_, before),) = await own.run("SHOW SESSION STATUS LIKE 'Com_stmt_prepare'")
    ((_, closed),) = await own.run("SHOW SESSION STATUS LIKE 'Com_stmt_close'")
    assert int(before) == int(closed) > 0
    await own.close()
