"""Keeps the leases of a consuming stream alive while its micro-batches run.

A thread with its own connection extends every held claim three times per lease, and sends
heartbeats for the partitions of an ordered queue. A stale claim is dropped: another consumer may
have its delivery, which is redelivered (C5).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.client import Client
from penstock.consume.membership import HEARTBEAT_MS
from penstock.errors import PenstockError
from penstock.model.delivery import Ack, Extend, Receipt, Release, Settlement, Verdict
from penstock.pipeline.remote import Server

__all__ = ["Leases", "acks", "releases", "settle"]

_log: Final = logging.getLogger(__name__)

#: Settlements per call.
_CALL: Final = 1_000


async def settle(q: Client, queue: str, settlements: Sequence[Settlement]) -> list[Receipt]:
    """Settle all of them; returns the stale receipts, which are not an error here."""
    stale: list[Receipt] = []
    for start in range(0, len(settlements), _CALL):
        reply = await q.settle(queue, settlements[start : start + _CALL])
        stale += [one.receipt for one in reply.outcomes if one.verdict is not Verdict.OK]
    return stale


class Leases:
    """The claims that one stream holds in one queue."""

    def __init__(self, server: Server, queue: str, consumer: str, *, ordered: bool) -> None:
        self._server = server
        self._queue = queue
        self._consumer = consumer
        self._ordered = ordered
        self._lock = threading.Lock()
        self._held: dict[Receipt, None] = {}
        #: Those of them that are being settled: they become stale, and nothing is lost.
        self._ending: set[Receipt] = set()
        self._lease_ms = HEARTBEAT_MS * 3
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="penstock.leases", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Receipt]:
        with self._lock:
            return iter(list(self._held))

    def hold(self, receipts: Iterable[Receipt], lease_ms: int) -> None:
        """Keep these alive, extending by ``lease_ms`` each time."""
        with self._lock:
            self._held.update(dict.fromkeys(receipts))
            self._lease_ms = lease_ms

    def ending(self, receipts: Iterable[Receipt]) -> None:
        """Go on extending these while they are being settled, which may take a while."""
        with self._lock:
            self._ending.update(receipts)

    def drop(self, receipts: Iterable[Receipt]) -> None:
        """Stop extending these, because they are settled or stale."""
        with self._lock:
            for receipt in receipts:
                self._held.pop(receipt, None)
                self._ending.discard(receipt)

    def close(self) -> None:
        """Stop extending."""
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        with self._server.open() as remote:
            while not self._over.wait(self._pause_s):
                try:
                    remote.ask(self._extend)
                except PenstockError as error:
                    _log.warning("Leases in %r were not extended: %s", self._queue, error)

    @property
    def _pause_s(self) -> float:
        with self._lock:
            return min(self._lease_ms, HEARTBEAT_MS * 3) / 3 / 1000

    async def _extend(self, q: Client) -> None:
        if self._ordered:
            await q.join(self._queue, self._consumer)
        with self._lock:
            extensions = [Extend(receipt, self._lease_ms) for receipt in self._held]
        stale = await settle(q, self._queue, extensions)
        with self._lock:
            lost = [one for one in stale if one in self._held and one not in self._ending]
        if lost:
            _log.warning(
                "%d claims in %r are lost; their messages come again.", len(lost), self._queue
            )
        self.drop(lost)


def acks(receipts: Iterable[Receipt]) -> list[Settlement]:
    """An ack for each receipt."""
    return [Ack(receipt) for receipt in receipts]


def releases(receipts: Iterable[Receipt]) -> list[Settlement]:
    """A release for each receipt."""
    return [Release(receipt) for receipt in receipts]
