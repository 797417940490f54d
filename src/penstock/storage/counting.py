"""Counts of several queues, for engines that do not have them in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import NotFound
from penstock.model.counts import QueueCounts

if TYPE_CHECKING:
    from penstock.storage.contract import Engine

__all__ = ["count_each"]


async def count_each(
    engine: Engine, tenant: str, queues: Sequence[str]
) -> tuple[QueueCounts | None, ...]:
    """The counts of each queue; None for one that does not exist."""

    async def one(queue: str) -> QueueCounts | None:
        try:
            info = await engine.get_queue(tenant, queue)
            return QueueCounts.of(info, await engine.stats(tenant, queue), engine.clock.now())
        except NotFound:
            return None

    return tuple(await asyncio.gather(*map(one, queues)))
