"""Hundreds of seeds of the simulation; ``penstock simulate`` runs as many as one has time for."""

from __future__ import annotations

import pytest

from penstock.testing.simulation.engines import simulation_of
from penstock.testing.simulation.report import simulate

#: About a minute on one core.
SEEDS = 350


@pytest.mark.slow  # Interleavings are rare; a few seeds would find nothing.
def test_keyvalue_keeps_the_laws_in_every_interleaving() -> None:
    report = simulate(simulation_of("keyvalue"), first_seed=0, seeds=SEEDS, steps=60)
    for failure in report.failures:
        print(failure.shortest, *failure.shortest_violations, sep="\n")
    assert report.failures == []
    assert report.interleavings == SEEDS
    assert set(report.faults) == {"power_loss", "kill", "restart", "failed_sync", "full_disk"}
