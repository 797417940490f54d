"""Membership: a consumer of an ordered queue joins, heartbeats and leaves (O1).

Its partitions are leased to it. A heartbeat every third of that lease renews them; a missed one
is retried soon. A heartbeat may also hand partitions over to another consumer: the claims in
them are extended immediately, to find those that are lost, because the new owner may work on
the same deliveries.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.api import QueueApi
from penstock.consume.holdings import Holdings
from penstock.consume.pace import Pace
from penstock.errors import PenstockError
from penstock.model.limits import CONSUMER_LEASE_MS

__all__ = ["HEARTBEAT_MS", "Membership"]

HEARTBEAT_MS: Final = CONSUMER_LEASE_MS // 3
#: After a missed heartbeat: the third in a row would come when the lease is just over.
_MISSED_MS: Final = HEARTBEAT_MS // 10

_log = logging.getLogger("penstock.consume")


class Membership:
    """The membership of one consumer in one ordered queue."""

    def __init__(
        self, verbs: QueueApi, queue: str, consumer: str, holdings: Holdings, pace: Pace
    ) -> None:
        self._verbs = verbs
        self._queue = queue
        self._consumer = consumer
        self._holdings = holdings
        self._pace = pace

    async def join(self) -> None:
        """Join, or heartbeat, and check the claims in partitions that it no longer owns."""
        ownership = await self._verbs.join(self._queue, self._consumer)
        # A concurrent claim may have been granted a partition that is not in this reply, so the
        # receipts decide and not the reply.
        await self._holdings.extend(
            hold
            for hold in self._holdings
            if hold.delivery.queue == self._queue
            and (hold.delivery.message.partition_key or "") not in ownership.partitions
        )

    async def beat(self) -> None:
        """Heartbeat forever. Raises errors that cannot be retried."""
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
        """Give up the partitions immediately; otherwise they stay until the lease is over."""
        try:
            await self._verbs.leave(self._queue, self._consumer)
        except PenstockError as error:
            _log.warning(
                "Leaving %r failed: its partitions stay until they lapse: %s", self._queue, error
            )
