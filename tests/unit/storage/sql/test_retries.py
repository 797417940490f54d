"""How often a transaction is made again, and what is waited before (C5)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.errors import StoreBusy
from penstock.model.message import NewMessage
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.storage.listener import Listener
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import RetryTransaction, Stale
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.work import Work
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.databases import store_url
from tests.unit.storage.sql.pairs import NAME, TENANT, Pair, claim, payloads


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is slept, in milliseconds, without doing so."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(round(seconds * 1000))

    monkeypatch.setattr("penstock.storage.sql.core.asyncio.sleep", sleep)
    return found


async def _failing(dialect: str, error: Exception) -> tuple[int, list[int]]:
    """How often a transaction that always fails is made, and the ceilings of its waits."""
    ceilings: list[int] = []

    def jitter(ceiling_ms: int) -> int:
        ceilings.append(ceiling_ms)
        return ceiling_ms // 2

    options = EngineOptions(clock=FakeClock(), jitter=jitter)
    engine = await open_engine(store_url(dialect, NAME), options)
    assert isinstance(engine, SqlEngine)
    tries = 0

    async def act(_: Work) -> None:
        nonlocal tries
        tries += 1
        raise error

    try:
        with pytest.raises(StoreBusy, match="tries"):
            await engine._core.transact(TENANT, act)
    finally:
        await engine.close()
    return tries, ceilings


@law("C5")
async def test_a_conflict_is_retried_a_few_times_with_full_jitter(
    dialect: str, slept: list[float]
) -> None:
    tries, ceilings = await _failing(dialect, RetryTransaction("deadlock"))
    assert tries == 8
    assert ceilings == [10, 20, 40, 80, 160, 320, 640]
    assert [wait for wait in slept if wait] == [5, 10, 20, 40, 80, 160, 320]


@law("C5")
async def test_a_catalog_that_keeps_changing_is_given_up(dialect: str, slept: list[float]) -> None:
    del slept
    tries, ceilings = await _failing(dialect, Stale())
    assert tries == 20
    assert ceilings == [10, 20, 40, 80, 160, 320, 640, *[1000] * 4]


@law("C5")
async def test_a_reader_gives_up_on_a_catalog_that_keeps_changing(
    dialect: str, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    del slept
    engine = await open_engine(store_url(dialect, NAME), EngineOptions(clock=FakeClock()))
    assert isinstance(engine, SqlEngine)
    core: Core = engine._core
    reads = 0
    tenant = core.catalog.tenant

    async def outdated(name: str) -> Any:
        nonlocal reads
        reads += 1
        found = await tenant(name)
        found.version = -1
        return found

    monkeypatch.setattr(core.catalog, "tenant", outdated)
    try:
        with pytest.raises(StoreBusy, match="keeps changing"):
            await engine.stats(TENANT, "q")
    finally:
        await engine.close()
    assert reads >= 20


@law("P4")
async def test_a_listener_that_fails_fails_no_verb(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is made: whoever heard of a failure would publish it a second time."""

    class Failing(Listener):
        def committed(self, records: int, seconds: float) -> None:
            raise ZeroDivisionError

    pair.a.listener = Failing()
    with caplog.at_level(logging.ERROR, "penstock.storage"):
        await pair.a.publish(TENANT, "old", [NewMessage(b"1")])
        await pair.a.publish(TENANT, "old", [NewMessage(b"2", id="x")])
        assert payloads(await claim(pair.a, "old")) == [b"0", b"1", b"2"]
    assert "listener" in caplog.text
