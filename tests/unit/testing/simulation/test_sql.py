"""The simulation of the SQL engine: it repeats, and it finds what is broken."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.storage.sql.database import Session
from penstock.testing.laws import law
from penstock.testing.simulation import sql
from penstock.testing.simulation.program import Fault, Program, Step
from penstock.testing.simulation.report import simulate
from penstock.testing.simulation.sql import FAULT_KINDS, SqlSimulation
from penstock.testing.simulation.sql_gated import GatedDatabase, GatedSession
from tests.databases import empty_url, server

NAME = "simulated"
#: Only a test that would hang for ever waits this long.
HANG_S = 60.0
_PUBLISH = {
    "tenant": "acme",
    "topic": "work",
    "batch": [{"id": "i"}, {}],
    "durability": "fsync",
    "batch_id": None,
}


@pytest.fixture(params=["postgresql", "mysql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def simulated(dialect: str) -> Iterator[SqlSimulation]:
    found = SqlSimulation(empty_url(dialect, NAME))
    yield found
    found.close()


def test_a_seed_repeats(simulated: SqlSimulation) -> None:
    """The same statements of the same servers in the same order, with the same faults."""
    # The first one takes another course if it finds connections that a run before it opened.
    programs = [simulated.simulation.program(seed, 16) for seed in (5010, 4)]
    first = [simulated.run(program) for program in programs]
    again = [simulated.run(program) for program in reversed(programs)][::-1]
    assert first == again
    assert first[0].trace != first[1].trace
    assert [outcome.violations for outcome in first] == [(), ()]


def test_every_kind_of_fault_strikes(simulated: SqlSimulation) -> None:
    steps = tuple(Step("publish", _PUBLISH) for _ in range(4))
    faults = tuple(Fault(kind, 2) for kind in FAULT_KINDS)
    outcome = simulated.run(Program(7, (steps, steps), faults))
    assert outcome.violations == ()
    assert set(outcome.faults) == set(FAULT_KINDS)


def test_a_connection_that_a_run_left_in_use_does_not_keep_it_open(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "_CLOSE_S", 0.1)
    simulated = SqlSimulation(empty_url(dialect, NAME))
    leaked = simulated._databases[0].transaction()
    simulated._loop.run_until_complete(leaked.__aenter__())
    closing = threading.Thread(target=simulated.close, daemon=True)
    closing.start()
    closing.join(HANG_S)
    assert not closing.is_alive()


class _Forgetful(GatedSession):
    """Leaves a run where it was when all of it is claimed or settled."""

    async def change(
        self,
        tenant: int,
        segments: Sequence[Any],
        gone: Sequence[Any],
        runs: Sequence[Any],
        counts: Sequence[Any],
        *rest: Any,
    ) -> tuple[int, list[int]]:
        return await super().change(tenant, segments, gone[1:], runs, counts, *rest)


class _ForgetfulDatabase(GatedDatabase):
    def session(self, inner: Session, order: int, *, commits_itself: bool) -> GatedSession:
        return _Forgetful(self, inner, order, commits_itself=commits_itself)


@pytest.mark.timeout(600)  # Shrinking takes some 100 runs.
def test_a_delivery_in_two_states_is_found(dialect: str) -> None:
    broken = SqlSimulation(empty_url(dialect, NAME), _ForgetfulDatabase)
    try:
        report = simulate(broken.simulation, first_seed=1, seeds=10, steps=12)
    finally:
        broken.close()
    assert report.failures
    assert report.failures[0].shortest.steps < 12


@law("E1")
def test_a_store_that_is_in_use_is_not_emptied(dialect: str) -> None:
    url = empty_url(dialect, NAME)
    SqlSimulation(url).close()
    found = server(dialect)
    found.sql("INSERT INTO penstock_tenant (name) VALUES ('somebody')", NAME)
    with pytest.raises(BadInput, match="empty"):
        SqlSimulation(url)
    assert found.sql("SELECT count(*) FROM penstock_tenant", NAME) == [["1"]]
