"""Server numbers are leased: no two live servers have the same one (C1)."""

from __future__ import annotations

import pytest

from penstock.errors import StoreBusy
from penstock.model.message import NewMessage
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.sql.claim_numbers import LEASE_MS, MAX_SERVERS, USE_S, Leases, NoServerNumber
from penstock.storage.sql.core import Core
from penstock.storage.sql.engine import SqlEngine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.databases import server
from tests.unit.storage.sql.pairs import (
    NAME,
    TENANT,
    Pair,
    claim,
    opened,
    opened_again,
    payloads,
    publish,
)


def core_of(engine: Engine) -> Core:
    assert isinstance(engine, SqlEngine)
    return engine._core


def number_of(engine: Engine) -> int:
    return int(core_of(engine).leases.next(0)) & MAX_SERVERS


def leased(dialect: str) -> dict[int, int]:
    """By number, until when it is leased."""
    rows = server(dialect).sql("SELECT number, until FROM penstock_server", NAME)
    return {int(number): int(until) for number, until in rows}


def sql(dialect: str, statement: str) -> None:
    server(dialect).sql(statement, NAME)


@law("C1")
async def test_live_servers_have_different_numbers(dialect: str) -> None:
    async with opened(dialect, *[FakeClock()] * 4) as engines:
        assert sorted(map(number_of, engines)) == [1, 2, 3, 4]


async def test_a_server_that_closes_releases_its_number(dialect: str) -> None:
    clock = FakeClock()
    async with opened(dialect, clock) as (first,):
        async with opened_again(dialect, clock) as second:
            assert number_of(second) == 2
        assert leased(dialect)[2] == 0
        async with opened_again(dialect, clock) as third:
            assert number_of(third) == 2
        assert number_of(first) == 1


async def test_the_database_decides_when_a_lease_ends(dialect: str) -> None:
    """The clock that an engine goes by may be anything."""
    clock = FakeClock()
    async with opened(dialect, clock) as (first,):
        clock.advance(1_000 * LEASE_MS)
        async with opened_again(dialect, clock) as second:
            assert (number_of(first), number_of(second)) == (1, 2)


async def test_the_number_of_a_server_that_is_gone_is_taken_over(dialect: str) -> None:
    clock = FakeClock()
    async with opened(dialect, clock):
        sql(dialect, "INSERT INTO penstock_server (number, holder, until) VALUES (9, 7, 1)")
        async with opened_again(dialect, clock) as second:
            assert number_of(second) == 9


@law("C1")
async def test_a_server_that_lost_its_number_claims_with_another(dialect: str, pair: Pair) -> None:
    await publish(pair.a, "old", b"1", b"2")
    sql(dialect, "UPDATE penstock_server SET holder = 7 WHERE number = 1")
    core_of(pair.a).leases.lapse()
    with pytest.raises(NoServerNumber):
        core_of(pair.a).leases.next(0)
    assert payloads(await claim(pair.a, "old", 1)) == [b"0"]
    assert number_of(pair.a) == 3
    assert payloads(await claim(pair.b, "old")) == [b"1", b"2"]


async def test_a_lease_is_renewed_by_the_next_claim(dialect: str, pair: Pair) -> None:
    sql(dialect, "UPDATE penstock_server SET until = 5 WHERE number = 1")
    core_of(pair.a).leases.lapse()
    assert payloads(await claim(pair.a, "old", 1)) == [b"0"]
    assert number_of(pair.a) == 1
    assert leased(dialect)[1] > 5


@law("C5")
async def test_a_claim_that_has_to_lease_a_number_hands_out_what_is_due(pair: Pair) -> None:
    """Its first transaction is rolled back, and with it the end of the delay."""
    due = NewMessage(b"due", deliver_at=pair.clock.now() + 1_000)
    await pair.a.publish(TENANT, "old", [due])
    pair.clock.advance(1_000)
    core_of(pair.a).leases.lapse()
    assert payloads(await claim(pair.a, "old")) == [b"0", b"due"]
    assert (await pair.a.stats(TENANT, "old")).delayed == 0


async def test_one_server_too_many_is_refused(dialect: str) -> None:
    clock = FakeClock()
    async with opened(dialect, clock) as (first,):
        every = ", ".join(f"({number}, 7, {1 << 60})" for number in range(2, MAX_SERVERS + 1))
        sql(dialect, f"INSERT INTO penstock_server (number, holder, until) VALUES {every}")
        with pytest.raises(StoreBusy, match="1023 server numbers"):
            await open_engine(server(dialect).url(NAME), EngineOptions(clock=clock))
        await publish(first, "t", b"x")
        assert payloads(await claim(first, "t")) == [b"x"]


def test_a_number_is_used_for_less_than_its_lease() -> None:
    now = [100.0]
    leases = Leases(steady=lambda: now[0])
    assert not leases.usable
    leases.hold(3, now[0] + USE_S)
    assert leases.next(0) & MAX_SERVERS == 3
    now[0] += USE_S
    assert not leases.usable
    with pytest.raises(NoServerNumber):
        leases.next(0)
    assert 1_000 * USE_S < LEASE_MS


@law("C1")
@pytest.mark.parametrize("number", [0, -1, MAX_SERVERS + 1, 1025])
def test_a_number_of_more_bits_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="server number"):
        Leases(number)
