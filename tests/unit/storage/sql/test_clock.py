"""The database's clock: how it is measured, and that a machine's own clock does not matter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import cast

import pytest

from penstock import Broker, BrokerOptions, EngineOptions
from penstock.errors import StaleReceipt
from penstock.model.clock import SystemClock
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.storage.engines import open_engine
from penstock.storage.sql import clock as module
from penstock.storage.sql.clock import DatabaseClock, clock_for
from penstock.storage.sql.database import ConnectionLost, Database
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.databases import server as server_of
from tests.databases import store_url

#: Only a test that would hang for ever waits this long.
HANG_S = 60.0


class Server:
    """A database that is so far away, with a clock of its own and a steady one beside it."""

    def __init__(self) -> None:
        #: Milliseconds, of the database and of this machine since it was started.
        self.time = 1_700_000_000_000.0
        self.up = 5_000.0
        #: Milliseconds that questions and answers take, in turn; the last for ever.
        self.trips = [(0.0, 0.0)]
        self.asked = 0
        self.failure: Exception | None = None
        self.answered = asyncio.Event()

    def pass_time(self, ms: float) -> None:
        self.time += ms
        self.up += ms

    def steady(self) -> float:
        return self.up / 1000

    async def now(self) -> int:
        there, back = self.trips[0] if len(self.trips) == 1 else self.trips.pop(0)
        self.asked += 1
        self.answered.set()
        if self.failure is not None:
            raise self.failure
        self.pass_time(there)
        found = int(self.time)
        self.pass_time(back)
        return found


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def clock(server: Server) -> DatabaseClock:
    found = DatabaseClock(cast(Database, server), server.steady)
    await found.measure()
    return found


@pytest.fixture
async def running(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DatabaseClock]:
    monkeypatch.setattr(module, "_EVERY_S", 3600.0)
    monkeypatch.setattr(module, "_AGAIN_S", 3600.0)
    found = await clock_for(cast(Database, server), SystemClock())
    assert isinstance(found, DatabaseClock)
    yield found
    await found.close()


def off(clock: DatabaseClock, server: Server) -> float:
    """By how many milliseconds the clock is ahead of the database's."""
    return clock.now() - server.time


# -- measuring -------------------------------------------------------------------------


async def test_it_goes_on_with_the_steady_clock(clock: DatabaseClock, server: Server) -> None:
    assert clock.now() == server.time
    server.pass_time(1234)
    assert clock.now() == server.time
    assert server.asked == 3


@pytest.mark.parametrize("there,back", [(40, 0), (0, 40), (20, 20), (0.2, 0.2)])
async def test_it_is_off_by_no_more_than_half_a_round_trip(
    server: Server, there: float, back: float
) -> None:
    server.trips = [(there, back)]
    clock = DatabaseClock(cast(Database, server), server.steady)
    await clock.measure()
    assert abs(off(clock, server)) <= (there + back) / 2 + 1


async def test_the_shortest_round_trip_counts(server: Server) -> None:
    server.trips = [(500, 0), (1, 1), (0, 500)]
    clock = DatabaseClock(cast(Database, server), server.steady)
    await clock.measure()
    assert abs(off(clock, server)) <= 2


async def test_a_slow_answer_changes_nothing(clock: DatabaseClock, server: Server) -> None:
    server.trips = [(800, 3), (3, 900), (700, 700)]
    await clock.measure()
    assert abs(off(clock, server)) <= 1


@pytest.mark.parametrize("drift", [7, -7])
async def test_drift_is_corrected(clock: DatabaseClock, server: Server, drift: float) -> None:
    server.trips = [(1, 1)]
    for _ in range(5):
        server.pass_time(10_000)
        server.time += drift
        await clock.measure()
        assert abs(clock._read() - server.time) <= 3


# -- going back ------------------------------------------------------------------------


async def test_a_small_step_back_is_waited_out(clock: DatabaseClock, server: Server) -> None:
    before = clock.now()
    server.time -= 900
    await clock.measure()
    assert clock.now() == before
    server.pass_time(800)
    assert clock.now() == before
    server.pass_time(200)
    assert before < clock.now() <= server.time + 2


async def test_a_large_step_back_is_followed(clock: DatabaseClock, server: Server) -> None:
    before = clock.now()
    server.time -= 60_000
    await clock.measure()
    assert clock.now() < before
    assert abs(off(clock, server)) <= 2


async def test_a_step_forward_is_followed(clock: DatabaseClock, server: Server) -> None:
    clock.now()
    server.time += 60_000
    await clock.measure()
    assert abs(off(clock, server)) <= 2


# -- being called ----------------------------------------------------------------------


async def test_it_calls_when_it_is_time(clock: DatabaseClock, server: Server) -> None:
    called = asyncio.Event()
    clock.call_at(clock.now() - 5000, called.set)
    assert not called.is_set()
    await asyncio.wait_for(called.wait(), HANG_S)
    never = clock.call_at(clock.now() + 3_600_000, called.clear)
    never.cancel()
    loop = asyncio.get_running_loop()
    soon = clock.call_at(clock.now() + 1000, called.clear)
    assert isinstance(soon, asyncio.TimerHandle)
    assert 0.9 < soon.when() - loop.time() <= 1.001
    soon.cancel()


async def test_a_clock_that_stands_still_does_not_call_early(
    clock: DatabaseClock, server: Server
) -> None:
    clock.now()
    server.time -= 900
    await clock.measure()
    alarm = clock.call_at(clock.now() + 100, lambda: None)
    assert isinstance(alarm, asyncio.TimerHandle)
    assert alarm.when() - asyncio.get_running_loop().time() > 0.9
    alarm.cancel()


# -- in the background -----------------------------------------------------------------


async def asked_again(clock: DatabaseClock, server: Server) -> None:
    """Have it measured, and see to it that it is over."""
    before = server.asked
    clock.doubt()
    while server.asked < before + (1 if server.failure else 3):
        server.answered.clear()
        await asyncio.wait_for(server.answered.wait(), HANG_S)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_is_measured_again(running: DatabaseClock, server: Server) -> None:
    assert abs(off(running, server)) < 60_000
    server.time += 3_600_000
    await asked_again(running, server)
    assert abs(off(running, server)) < 60_000


async def test_it_is_measured_now_and_then(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY_S", 0.001)
    clock = await DatabaseClock.start(cast(Database, server))
    while server.asked < 9:
        server.answered.clear()
        await asyncio.wait_for(server.answered.wait(), HANG_S)
    await clock.close()
    await clock.close()
    stopped = server.asked
    await asyncio.sleep(0.01)
    assert server.asked == stopped


async def test_without_an_answer_time_goes_on(
    running: DatabaseClock, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    before = running.now()
    server.failure = ConnectionLost("gone", committing=False)
    with caplog.at_level(logging.WARNING, "penstock.storage"):
        await asked_again(running, server)
        await asked_again(running, server)
    assert [record.message for record in caplog.records] == [
        "Cannot read the database's clock: gone"
    ]
    assert running.now() >= before
    server.failure = None
    server.time += 3_600_000
    await asked_again(running, server)
    assert running.now() > before + 3_000_000


async def test_a_store_that_cannot_tell_the_time_is_not_opened(server: Server) -> None:
    server.failure = ConnectionLost("gone", committing=False)
    with pytest.raises(ConnectionLost):
        await clock_for(cast(Database, server), SystemClock())


async def test_a_clock_that_is_moved_by_hand_is_used_as_it_is(server: Server) -> None:
    fake = FakeClock()
    assert await clock_for(cast(Database, server), fake) is fake
    assert server.asked == 0
    assert not DatabaseClock(cast(Database, server)).wall


# -- two servers of one database, whose own clocks are wrong ---------------------------


class Wrong(SystemClock):
    """The clock of a machine that is off."""

    def __init__(self, off_ms: int) -> None:
        self._off_ms = off_ms

    def now(self) -> int:
        return super().now() + self._off_ms


NOW_SQL = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "mysql": "SELECT UNIX_TIMESTAMP(NOW(6))",
}


@pytest.fixture(params=list(NOW_SQL))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def pair(dialect: str) -> AsyncIterator[tuple[Broker, Broker]]:
    """One is five seconds ahead, the other five behind."""
    url = store_url(dialect)
    brokers: list[Broker] = []
    for off_ms in (5_000, -5_000):
        options = BrokerOptions(engine=EngineOptions(clock=Wrong(off_ms)))
        engine = await open_engine(url, options.engine)
        brokers.append(Broker(engine, options))
    yield brokers[0], brokers[1]
    for broker in brokers:
        await broker.close()


class Around:
    """What the database's own clock showed before and after, with a little for rounding."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.began = self.read()

    def read(self) -> float:
        ((now,),) = server_of(self._dialect).sql(NOW_SQL[self._dialect])
        return float(now) * 1000

    def has(self, at: int) -> bool:
        return self.began - SLACK_MS <= at <= self.read() + SLACK_MS


#: How far two readings of one clock may be apart on a machine that is busy.
SLACK_MS = 500


async def test_both_show_the_databases_time(pair: tuple[Broker, Broker], dialect: str) -> None:
    for broker in pair:
        around = Around(dialect)
        assert around.has(broker.engine.clock.now())
        info = await broker.create_queue(f"q{id(broker)}")
        assert around.has(info.created_at)


@law("C1")
@pytest.mark.parametrize("first", [0, 1], ids=["ahead", "behind"])
async def test_a_lease_lapses_by_the_databases_clock(
    pair: tuple[Broker, Broker], dialect: str, first: int
) -> None:
    a, b = pair[first], pair[1 - first]
    await a.create_queue("q")
    await b.publish("q", b"x")
    around = Around(dialect)
    (held,) = await a.claim("q", lease_ms=1_500)
    assert around.has(held.claimed_at)
    assert held.lease_deadline == held.claimed_at + 1_500
    # The other does not think that it lapsed long ago, and waits.
    (again,) = await b.claim("q", wait_ms=30_000, lease_ms=60_000)
    assert around.has(again.claimed_at)
    assert again.claimed_at >= held.lease_deadline
    # And this one does not think that what the other has just got is over.
    assert await a.claim("q") == []
    with pytest.raises(StaleReceipt):
        await a.ack(held)
    assert (await b.ack(again)).ok


@law("C3")
@pytest.mark.parametrize("first", [0, 1], ids=["ahead", "behind"])
async def test_delays_are_right_on_both(
    pair: tuple[Broker, Broker], dialect: str, first: int
) -> None:
    a, b = pair[first], pair[1 - first]
    await a.create_queue("q")
    around = Around(dialect)
    await a.publish("q", b"x", delay_ms=700)
    (delivery,) = await b.claim("q", wait_ms=30_000)
    assert around.has(delivery.claimed_at)
    assert delivery.message.deliver_at is not None
    assert delivery.claimed_at >= delivery.message.deliver_at
    assert delivery.message.deliver_at >= around.began + 700 - SLACK_MS


@law("O1")
@pytest.mark.parametrize("first", [0, 1], ids=["ahead", "behind"])
async def test_nobody_takes_the_partitions_of_one_who_is_alive(
    pair: tuple[Broker, Broker], dialect: str, first: int
) -> None:
    a, b = pair[first], pair[1 - first]
    await a.create_queue("q", ordering="partition")
    for partition in ("x", "y"):
        await a.publish("q", b"1", partition_key=partition)
    around = Around(dialect)
    own = await a.join("q", "a")
    assert set(own.partitions) == {"x", "y"}
    assert around.has(own.deadline - CONSUMER_LEASE_MS)
    assert (await b.join("q", "b")).partitions == {}
    assert len((await a.join("q", "a")).partitions) == 1
    assert len((await b.join("q", "b")).partitions) == 1
