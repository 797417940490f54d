"""Deliveries that a program holds and settles together, for programs that block.

Generated from ``penstock.consume.lease_batch`` by ``generate.py``: change that, and generate again.
"""

from __future__ import annotations

from penstock.model.delivery import Delivery, Outcome
from penstock.model.duration import Duration
from penstock.sync.blocking import BlockingLeaseBatch

__all__ = ["SyncLeaseBatch"]


class SyncLeaseBatch(BlockingLeaseBatch):
    """Claimed deliveries, and the ways to settle them together."""

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries, also those that are settled or lost."""
        return self._batch.deliveries

    @property
    def held(self) -> int:
        """How many are held and not yet settled."""
        return self._batch.held

    def ack(self) -> tuple[Outcome, ...]:
        """Mark those that are held as done, each with the ``result`` of its lease.

        A lost claim has the verdict ``stale``, here and in the other calls.
        """
        return self._run(self._batch.ack)

    def nack(
        self, error: str | None = None, *, delay_ms: Duration | None = None
    ) -> tuple[Outcome, ...]:
        """Retry those that are held later; those without attempts left fail."""
        return self._run(self._batch.nack, error, delay_ms=delay_ms)

    def reject(self, error: str | None = None) -> tuple[Outcome, ...]:
        """Fail those that are held immediately, without a retry."""
        return self._run(self._batch.reject, error)

    def release(self, delay_ms: Duration | None = None) -> tuple[Outcome, ...]:
        """Return those that are held unprocessed, to be handed out again now or later.

        The grants do not count as attempts.
        """
        return self._run(self._batch.release, delay_ms)
