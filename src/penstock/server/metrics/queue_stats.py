"""Queue statistics of a store, read on each scrape.

Labels are bounded: the first queues by tenant and name get labels of their own, the others
share one, with summed counts and the greatest age. The work is bounded too: queues beyond
``MAX_READ`` are counted but not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec import Struct

from penstock.errors import NotFound, StoreError
from penstock.model.delivery import QueueStats
from penstock.model.states import State
from penstock.server.metrics.counting import OTHER
from penstock.storage.contract import Engine

__all__ = ["MAX_NAMED", "MAX_READ", "Gathered", "QueueNumbers", "gather"]

#: Queues with labels of their own: 200 of them make about two thousand time series.
MAX_NAMED: Final = 200
#: Queues whose statistics are read: about a tenth of a second of work.
MAX_READ: Final = 2_000
#: Read concurrently, so that they wait for the same commit instead of one commit each.
_AT_ONCE: Final = 50


class QueueNumbers(Struct, frozen=True):
    """The numbers of one queue, or of all remaining ones."""

    tenant: str
    queue: str
    states: dict[str, int]
    depth: int
    lag: int
    oldest_available_ms: int | None


class Gathered(Struct, frozen=True):
    """What the store reported."""

    up: bool = False
    """Whether the store answered."""
    queues: int = 0
    """How many queues there are, including those without labels of their own."""
    lines: tuple[QueueNumbers, ...] = ()


async def gather(engine: Engine, tenant: str | None) -> Gathered:
    """The queues of one tenant, or of all (None)."""
    try:
        tenants = await engine.tenants() if tenant is None else (tenant,)
        names = [(each, info.name) for each in tenants for info in await engine.list_queues(each)]
        lines: list[QueueNumbers] = []
        wanted = iter(names[:MAX_READ])
        while batch := list(islice(wanted, _AT_ONCE)):
            found = await asyncio.gather(*(_numbers(engine, *place) for place in batch))
            lines += [line for line in found if line is not None]
    except StoreError:
        # A store that does not answer is reported by ``up``; the scrape must not fail.
        return Gathered()
    return Gathered(True, len(names), _bounded(lines))


async def _numbers(engine: Engine, tenant: str, queue: str) -> QueueNumbers | None:
    try:
        stats = await engine.stats(tenant, queue)
    except NotFound:
        # Deleted since it was listed.
        return None
    return QueueNumbers(
        tenant, queue, _states(stats), stats.depth, stats.lag, stats.oldest_available_ms
    )


def _states(stats: QueueStats) -> dict[str, int]:
    return {state.value: getattr(stats, state.value) for state in State}


def _bounded(lines: list[QueueNumbers]) -> tuple[QueueNumbers, ...]:
    if len(lines) <= MAX_NAMED:
        return tuple(lines)
    return (*lines[:MAX_NAMED], _together(lines[MAX_NAMED:]))


def _together(lines: list[QueueNumbers]) -> QueueNumbers:
    ages: Iterable[int] = (
        line.oldest_available_ms for line in lines if line.oldest_available_ms is not None
    )
    return QueueNumbers(
        OTHER,
        OTHER,
        {state.value: sum(line.states[state.value] for line in lines) for state in State},
        sum(line.depth for line in lines),
        sum(line.lag for line in lines),
        max(ages, default=None),
    )
