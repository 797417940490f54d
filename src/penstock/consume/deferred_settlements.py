"""Settlements that no task waits for: those of batches.

The program goes on with the next batch while they are sent. They are retried like claims, and
the consumption ends only when they have been answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from penstock.consume.failure import describe
from penstock.consume.hold import Fate, Hold
from penstock.consume.holdings import Holdings
from penstock.consume.settlement_batcher import REFUSALS, Answer, SettlementBatcher
from penstock.consume.stoppable import Stoppable
from penstock.errors import PenstockError
from penstock.model.delivery import Ack, Nack, Outcome, Settlement
from penstock.tracing import traced_settle

__all__ = ["DeferredSettlements"]

_log = logging.getLogger("penstock.consume")


class DeferredSettlements:
    """The settlements of one consumer that are on their way."""

    def __init__(
        self,
        batcher: Callable[[str], SettlementBatcher],
        holdings: Holdings,
        calls: Stoppable,
        fail: Callable[[Exception], None],
    ) -> None:
        self._batcher = batcher
        self._holdings = holdings
        self._calls = calls
        self._fail = fail
        self._under_way: set[asyncio.Task[None]] = set()

    def add(self, queue: str, holds: Sequence[Hold], settlements: Sequence[Settlement]) -> None:
        """Settle these claims, whose settlement the caller has begun."""
        # Added now and not by the task: the next claim is made with them.
        answers = self._batcher(queue).add(settlements)
        task = asyncio.create_task(self._finish(queue, settlements, holds, answers))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def finished(self) -> None:
        """Return when everything that was added has been answered."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    @traced_settle
    async def _finish(
        self,
        queue: str,
        settlements: Sequence[Settlement],
        holds: Sequence[Hold],
        answers: asyncio.Future[Sequence[Answer]],
    ) -> None:
        failures = 0
        try:
            while True:
                answered = await answers
                if all(isinstance(answer, Outcome) and answer.ok for answer in answered):
                    self._holdings.end(holds, Fate.SETTLED)
                    return
                failures += 1
                errors: list[PenstockError] = []
                again: list[tuple[Hold, Settlement]] = []
                for hold, settlement, answer in zip(holds, settlements, answered, strict=True):
                    if isinstance(answer, Outcome):
                        self._settled(hold, answer)
                    elif isinstance(answer, REFUSALS):
                        again += self._refused(hold, settlement, answer)
                    else:
                        errors.append(answer)
                        again.append((hold, settlement))
                holds, settlements = [pair[0] for pair in again], [pair[1] for pair in again]
                if not again:
                    return
                if errors and not await self._may_retry(queue, len(holds), errors[0], failures):
                    self._holdings.end(holds, Fate.DROPPED)
                    return
                answers = self._batcher(queue).add(settlements)
        except BaseException:
            self._holdings.end(holds, Fate.DROPPED)
            raise

    @staticmethod
    def _settled(hold: Hold, outcome: Outcome) -> None:
        if not outcome.ok:
            _log.warning("%s was lost before it could be settled", hold)
        hold.end(Fate.SETTLED if outcome.ok else Fate.LOST)

    @staticmethod
    def _refused(
        hold: Hold, settlement: Settlement, error: PenstockError
    ) -> Iterator[tuple[Hold, Settlement]]:
        """What to send instead."""
        if isinstance(settlement, Ack):
            # Its result cannot be stored: handled like an error of the body.
            _log.warning("%s: its result was refused", hold, exc_info=error)
            yield hold, Nack(hold.delivery.receipt, describe(error))
        else:
            _log.error("%s was not settled: %s", hold, error)
            hold.end(Fate.DROPPED)

    async def _may_retry(self, queue: str, count: int, error: PenstockError, failures: int) -> bool:
        may_retry = self._calls.may_retry(error, failures)
        if may_retry and not self._calls.is_stopping:
            await self._calls.back_off(error, failures)
            return True
        _log.error("%d messages of %r were not settled: %s", count, queue, error)
        if not may_retry:
            self._fail(error)
        return False
