"""The engine families that can be simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from penstock.errors import BadInput
from penstock.testing.simulation.report import Simulation

__all__ = ["ENGINES", "opened_simulation", "simulation_of"]

#: Engine family to "module:name" of its simulation, imported on demand.
_SIMULATIONS: Final = {
    "keyvalue": "penstock.testing.simulation.keyvalue:SIMULATION",
    "files": "penstock.testing.simulation.local_files:SIMULATION",
    "slatedb": "penstock.testing.simulation.local_slatedb:SIMULATION",
}
#: Engines that are simulated on a real database, by the scheme of its URL.
_DATABASES: Final = ("postgresql", "mysql")
ENGINES: Final = (*_SIMULATIONS, *_DATABASES)


def simulation_of(engine: str) -> Simulation:
    """The simulation of an engine family that needs no server."""
    module, _, name = _SIMULATIONS[engine].partition(":")
    simulation = getattr(import_module(module), name)
    assert isinstance(simulation, Simulation)
    return simulation


@contextmanager
def opened_simulation(engine: str, store: str | None = None) -> Iterator[Simulation]:
    """The simulation of an engine in ``ENGINES``.

    ``store`` is the URL of an empty database, or for SlateDB of a path in a bucket.
    """
    if engine == "slatedb" and store is not None:
        yield _in_bucket(store)
        return
    if engine not in _DATABASES:
        if store is not None:
            raise BadInput(f"The engine {engine!r} is simulated without a store.", field="store")
        yield simulation_of(engine)
        return
    if store is None or not store.startswith(f"{engine}://"):
        raise BadInput(
            f"The engine {engine!r} is simulated on a store that is an empty database: "
            f"{engine}://….",
            field="store",
        )
    from penstock.testing.simulation.sql import SqlSimulation  # noqa: PLC0415  (needs a driver)

    simulated = SqlSimulation(store)
    try:
        yield simulated.simulation
    finally:
        simulated.close()


def _in_bucket(store: str) -> Simulation:
    if not store.startswith("slatedb+") or store.startswith("slatedb+file:"):
        raise BadInput(
            "The engine 'slatedb' is simulated without a store, in a directory of its own, or on a "
            "store in a bucket: slatedb+s3://bucket/path.",
            field="store",
        )
    from penstock.testing.simulation.remote_slatedb import remote_simulation  # noqa: PLC0415

    return remote_simulation(store)
