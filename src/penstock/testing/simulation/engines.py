"""Which engine families can be simulated."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from penstock.testing.simulation.report import Simulation

__all__ = ["ENGINES", "simulation_of"]

#: Engine family to "module:name" of its simulation, imported when it is asked for.
_SIMULATIONS: Final = {
    "keyvalue": "penstock.testing.simulation.keyvalue:SIMULATION",
}
ENGINES: Final = tuple(_SIMULATIONS)


def simulation_of(engine: str) -> Simulation:
    """The simulation of an engine family, one of ``ENGINES``."""
    module, _, name = _SIMULATIONS[engine].partition(":")
    simulation = getattr(import_module(module), name)
    assert isinstance(simulation, Simulation)
    return simulation
