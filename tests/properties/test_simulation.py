"""Hundreds of seeds of the simulation; ``penstock simulate`` runs as many as one has time for."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from penstock.testing.simulation.engines import opened_simulation, simulation_of
from penstock.testing.simulation.report import simulate
from penstock.testing.simulation.sql import FAULT_KINDS
from tests.databases import empty_url
from tests.object_stores import s3_endpoint, s3_keys, s3_url

#: Four times thirty: about twelve seconds on one idle core.
SEEDS = 30
#: About twelve seconds on each database.
SQL_SEEDS = 30


@pytest.mark.slow  # Interleavings are rare; a few seeds would find nothing.
@pytest.mark.timeout(600)  # A loaded machine takes ten times as long.
@pytest.mark.parametrize("first_seed", range(0, 4 * SEEDS, SEEDS))
def test_keyvalue_keeps_the_laws_in_every_interleaving(first_seed: int) -> None:
    report = simulate(simulation_of("keyvalue"), first_seed=first_seed, seeds=SEEDS, steps=60)
    for failure in report.failures:
        print(failure.shortest, *failure.shortest_violations, sep="\n")
    assert report.failures == []
    assert report.interleavings == SEEDS
    assert report.faults.total() > 0


@pytest.mark.slow  # Real files.
@pytest.mark.timeout(600)  # A loaded machine takes ten times as long.
@pytest.mark.parametrize("engine, seeds", [("files", 15), ("slatedb", 6)])
def test_real_adapters_keep_the_laws_in_every_interleaving(engine: str, seeds: int) -> None:
    report = simulate(simulation_of(engine), first_seed=1, seeds=seeds, steps=40)
    for failure in report.failures:
        print(failure.shortest, *failure.shortest_violations, sep="\n")
    assert report.failures == []
    assert report.interleavings == seeds
    assert len(report.faults) > 2


@pytest.mark.slow  # Real servers.
@pytest.mark.timeout(600)  # A loaded machine takes ten times as long.
@pytest.mark.parametrize("server, seeds", [("seaweedfs", 6), ("moto", 3)])
def test_stores_in_a_bucket_keep_the_laws_in_every_interleaving(server: str, seeds: int) -> None:
    endpoint = s3_endpoint(server)
    url = s3_url(endpoint)
    with opened_simulation("slatedb", url) as simulation:
        report = simulate(simulation, first_seed=1, seeds=seeds, steps=40)
        again = simulation.run(simulation.program(1, 40))
    for failure in report.failures:
        print(failure.shortest, *failure.shortest_violations, sep="\n")
    assert report.failures == []
    assert report.interleavings == seeds
    assert len(report.faults) > 2
    # A run does not depend on how long the server takes to answer.
    assert again.trace in report.traces
    # Every run has removed its store.
    assert s3_keys(endpoint, urlsplit(url).path.lstrip("/")) == []


@pytest.mark.slow  # Every statement of every server waits for the one before it.
@pytest.mark.timeout(600)  # A loaded machine takes ten times as long.
@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_servers_on_one_database_keep_the_laws_in_every_interleaving(dialect: str) -> None:
    with opened_simulation(dialect, empty_url(dialect, "simulated")) as simulation:
        report = simulate(simulation, first_seed=0, seeds=SQL_SEEDS, steps=20)
    for failure in report.failures:
        print(failure.shortest, *failure.shortest_violations, sep="\n")
    assert report.failures == []
    assert report.interleavings == SQL_SEEDS
    assert set(report.faults) == set(FAULT_KINDS)
