"""Membership: a consumer of an ordered queue joins, heartbeats and leaves (O1).

Its partitions are leased to it; a heartbeat every third of that lease renews them, and one that
is missed is made up for soon. A heartbeat may also take partitions away, for another consumer
to have its share: the claims in them are asked about at once, because whoever works under
one of them no longer does so alone.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.consume.holdings import Holdings
from penstock.consume.pace import Pace
from penstock.errors import PenstockError
from penstock.model.limits import CONSUMER_LEASE_MS
from penstock.verbs import Verbs

__all__ = ["HEARTBEAT_MS", "Membership"]

HEARTBEAT_MS: Final = CONSUMER_LEASE_MS // 3
#: After one that was missed: the third in a row would come when the lease is just over.
_MISSED_MS: Final = HEARTBEAT_MS // 10

_log = logging.getLogger("penstock.consume")


class Membership:
    """One consumer's place in one ordered queue."""

    def __init__(
        self, verbs: Verbs, queue: str, consumer: str, holdings: Holdings, pace: Pace
    ) -> None:
        self._verbs = verbs
        self._queue = queue
        self._consumer = consumer
        self._holdings = holdings
        self._pace = pace

    async def join(self) -> None:
        """Join, or heartbeat."""
        ownership = await self._verbs.join(self._queue, self._consumer)
        # A claim that ran beside this call may have been given a partition that the answer does
        # not know, so the receipts are asked and not the answer.
        await self._holdings.extend(
            hold
            for hold in self._holdings
            if (hold.delivery.message.partition_key or "") not in ownership.partitions
        )

    async def beat(self) -> None:
        """Heartbeat for ever. What cannot get better by itself is raised."""
        wait_ms = HEARTBEAT_MS
        while True:
            await self._pace.sleep(wait_ms)
            try:
                await self.join()
                wait_ms = HEARTBEAT_MS
            except PenstockError as error:
                if not error.retryable:
                    raise
                wait_ms = _MISSED_MS
                _log.warning("A heartbeat in %r was missed: %s", self._queue, error)

    async def leave(self) -> None:
        """Let the others have the partitions at once; the lease gives them up otherwise."""
        try:
            await self._verbs.leave(self._queue, self._consumer)
        except PenstockError as error:
            _log.warning(
                "%r was not left: its partitions stay until they lapse: %s", self._queue, error
            )
