"""Catching up: queues that start in the past are routed from the log (R1, G1).

A queue that is behind gets nothing that is published either: it meets it in the log, in its
place. Assigning and advancing the cursor is one commit, so a pass that is cut short leaves no
gap and no duplicate.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.errors import PenstockError, StoreClosed, UnknownQueue
from penstock.keepers.keeper import Pass
from penstock.storage.contract import Engine

__all__ = ["CatchUp"]

#: The broker says when a queue was put that is behind. Looking for one once a second finds
#: those that another process put, or that were behind when the store was opened.
CATCH_UP_EVERY_MS: Final = 1_000
#: Log entries that one queue is routed by before it is the next one's turn, and before other
#: verbs have theirs: some five milliseconds.
CATCH_UP_BATCH: Final = 500
#: Log entries behind the end from which on a queue is left to the data pipeline, where that
#: routes; below it Spark would take longer to begin than this keeper does to end.
NEAR: Final = 20_000


class CatchUp:
    """Routes the queues that are behind, in turn."""

    name: Final = "catch-up"
    every_ms: Final = CATCH_UP_EVERY_MS

    def __init__(self, engine: Engine, near: int | None = None) -> None:
        self._engine = engine
        #: Queues that are further behind are somebody else's; None: there is nobody else.
        self._near = near

    async def run(self) -> Pass:
        """Route every queue that is behind by one batch."""
        scanned = 0
        more = False
        failure: PenstockError | None = None
        for tenant, queue in await self._engine.behind():
            try:
                if self._near is not None and not await self._is_near(tenant, queue, self._near):
                    continue
                reply = await self._engine.route(tenant, queue, CATCH_UP_BATCH)
            except StoreClosed:
                raise
            except UnknownQueue:
                continue  # Deleted since we asked.
            except PenstockError as error:
                failure = error  # One queue that cannot be routed does not hold up the others.
                continue
            scanned += reply.scanned
            more = more or (reply.cursor is not None and reply.scanned > 0)
            await asyncio.sleep(0)
        if failure is not None:
            raise failure
        return Pass(scanned, more)

    async def _is_near(self, tenant: str, queue: str, near: int) -> bool:
        """Whether the queue is no more than about ``near`` entries behind the log's end."""
        cursor = (await self._engine.get_queue(tenant, queue)).cursor
        if cursor is None:
            return True
        end = await self._engine.log_end(tenant)
        return len(await self._engine.log_splits(tenant, cursor, end, near)) <= 2
