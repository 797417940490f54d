"""A flow, as a program declares it: a queue to consume, a transformation, and a target.

``penstock flow apply`` runs the flows of a file. It adds what a query around a queue needs: the
checkpoint, exactly-once writes, retries, dead letters, and a record of the run with the broker.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from penstock.errors import BadInput, PenstockError
from penstock.model.limits import check_name, check_queue_name
from penstock.pipeline.exactly_once import Table, WriteBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Flow", "load_flows"]

Transform: TypeAlias = "Callable[[DataFrame], DataFrame]"

#: The name of a flow's module while it is loaded. It is never imported, so that Spark sends the
#: functions of the file to its workers instead of their names.
_MODULE: Final = "penstock_flow"
#: It is part of the names of its runs and its consumer.
_MAX_NAME: Final = 100


class Flow(Struct, frozen=True, kw_only=True):
    """One flow; exactly one of ``publish``, ``table`` and ``write`` is its target."""

    name: str
    """Names the checkpoint and the runs."""
    consume: str
    """The queue."""
    transform: Transform | None = None
    """From the rows of the queue to those of the target, row by row: each micro-batch is
    transformed alone. None: unchanged."""
    publish: str | None = None
    """The topic to publish to. The columns are those of the sink: ``value``, ``headers`` …"""
    table: str | Table | None = None
    """The Delta table to write: its path, or a :class:`Table`."""
    write: WriteBatch | None = None
    """A function that writes a micro-batch and its number in one transaction, as
    :func:`exactly_once` calls it."""
    batch_rows: int = 10_000
    """The most rows per micro-batch."""
    lease_ms: int = 60_000
    """How long the broker keeps the rows of a micro-batch for a flow that was killed."""

    def __post_init__(self) -> None:
        if len(check_name(self.name, "name")) > _MAX_NAME:
            raise BadInput(
                f"The name of a flow has at most {_MAX_NAME} characters.",
                field="name",
                limit=_MAX_NAME,
            )
        check_queue_name(self.consume)
        if sum(one is not None for one in (self.publish, self.table, self.write)) != 1:
            raise BadInput(
                f"The flow {self.name!r} has to have one target: publish, table or write.",
                field="publish",
            )
        if self.publish is not None:
            check_name(self.publish, "topic")
        for name in ("transform", "write"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise BadInput(f"{name} of {self.name!r} is not a function.", field=name)

    @property
    def target(self) -> Table | WriteBatch | str:
        """The table, the function, or the topic."""
        if isinstance(self.table, str):
            return Table(path=self.table)
        return self.publish or self.table or self.write or ""


def load_flows(path: str) -> list[Flow]:
    """The flows that a Python file defines, in their order; raises ``BadInput`` if it has none."""
    if not Path(path).is_file():
        raise BadInput(f"There is no file {path}.", field="file")
    try:
        found = runpy.run_path(path, run_name=_MODULE)
    except PenstockError:
        raise
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        where = f", line {last.lineno}" if last.filename == path else ""
        raise BadInput(f"{path}{where}: {type(error).__name__}: {error}", field="file") from error
    flows = list({id(value): value for value in found.values() if isinstance(value, Flow)}.values())
    if not flows:
        raise BadInput(f"{path} has no variable that is a Flow.", field="file")
    names = [flow.name for flow in flows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{path} has two flows with the name {twice!r}.", field="name")
    return flows
