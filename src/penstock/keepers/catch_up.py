"""Catching up: queues that start in the past are routed from the log (R1, G1).

A queue that is behind also gets new messages from the log, in order. One commit both assigns
the messages and advances the cursor, so an interrupted pass leaves no gap and no duplicate.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.errors import PenstockError, StoreClosed, UnknownQueue
from penstock.keepers.keeper import Pass
from penstock.storage.contract import Engine

__all__ = ["CatchUp"]

#: The broker notifies this keeper when a queue is put that is behind. Polling once per second
#: finds those that another process put, or that were behind when the store was opened.
CATCH_UP_EVERY_MS: Final = 1_000
#: Log entries routed per queue before the next queue and other verbs get their turn: about
#: five milliseconds.
CATCH_UP_BATCH: Final = 500


class CatchUp:
    """Routes the queues that are behind, round robin."""

    name: Final = "catch-up"
    every_ms: Final = CATCH_UP_EVERY_MS

    def __init__(self, engine: Engine, near: int | None = None) -> None:
        self._engine = engine
        #: Queues that are further behind are left to the pipeline; None: there is no pipeline.
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
                continue  # Deleted meanwhile.
            except PenstockError as error:
                failure = error  # One queue that cannot be routed does not block the others.
                continue
            scanned += reply.scanned
            more = more or (reply.cursor is not None and reply.scanned > 0)
            await asyncio.sleep(0)
        if failure is not None:
            raise failure
        return Pass(scanned, more)

    async def _is_near(self, tenant: str, queue: str, near: int) -> bool:
        """Whether the queue is at most about ``near`` entries behind the end of the log."""
        cursor = (await self._engine.get_queue(tenant, queue)).cursor
        if cursor is None:
            return True
        end = await self._engine.log_end(tenant)
        return len(await self._engine.log_splits(tenant, cursor, end, near)) <= 2
