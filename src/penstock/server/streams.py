"""The open streams and their credit: the receipts that each has handed out, until settled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from penstock.errors import Conflict
from penstock.model.delivery import Receipt

__all__ = ["Stream", "Streams"]

#: Unsettled payload bytes per stream: what a reader that hangs may keep in the server's memory.
MAX_UNSETTLED_BYTES: Final = 64 * 1024 * 1024
#: A receipt, and the tenant and queue it belongs to.
Held: TypeAlias = tuple[str, str, Receipt]


class Stream:
    """One open stream."""

    def __init__(self, streams: Streams, tenant: str, queue: str, credit: int) -> None:
        self._streams = streams
        self._tenant = tenant
        self._queue = queue
        self._credit = credit
        self._given = asyncio.Event()
        #: Each with the deadline of its lease and the size of its payload.
        self.held: dict[Held, tuple[int, int]] = {}
        self._bytes = 0

    def remaining(self, now: int) -> int:
        """How many more deliveries may be handed out; lapsed leases give their credit back.

        Raises ``Conflict`` if no credit is left and every lease lapsed: the reader is gone or
        hangs, and handing it the same deliveries again would only use up their attempts.
        """
        if self._is_full:
            lapsed = [held for held, (deadline, _) in self.held.items() if deadline < now]
            if len(lapsed) == len(self.held):
                raise Conflict(
                    "Every delivery of this stream lapsed unsettled: settle or extend in time.",
                    field="credit",
                )
            for held in lapsed:
                self._streams.settled(held)
        return 0 if self._is_full else self._credit - len(self.held)

    @property
    def _is_full(self) -> bool:
        return len(self.held) >= self._credit or self._bytes >= MAX_UNSETTLED_BYTES

    def hand_out(self, receipt: Receipt, deadline: int, size: int) -> None:
        """Count a delivery against the credit."""
        held = (self._tenant, self._queue, receipt)
        self.held[held] = (deadline, size)
        self._bytes += size
        self._streams.held[held] = self

    def extend(self, held: Held, deadline: int) -> None:
        """Record the new deadline of a lease."""
        self.held[held] = (deadline, self.held[held][1])

    def drop(self, held: Held) -> None:
        """Give back the credit of a settled or lapsed delivery."""
        _, size = self.held.pop(held)
        self._bytes -= size
        self._given.set()

    async def credit_given(self, timeout_ms: int) -> None:
        """Wait for credit, or until it is time to check for lapsed leases."""
        self._given.clear()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._given.wait()
        except TimeoutError:
            pass


class Streams:
    """All open streams of a server."""

    def __init__(self) -> None:
        #: Unsettled deliveries, each with the stream that handed it out.
        self.held: dict[Held, Stream] = {}

    @contextmanager
    def open(self, tenant: str, queue: str, credit: int) -> Iterator[Stream]:
        """Open a stream until the block ends."""
        stream = Stream(self, tenant, queue, credit)
        try:
            yield stream
        finally:
            for held in stream.held:
                self.held.pop(held, None)

    def settled(self, held: Held) -> None:
        """A delivery is settled; if a stream handed it out, give its credit back."""
        stream = self.held.pop(held, None)
        if stream is not None:
            stream.drop(held)

    def extended(self, held: Held, deadline: int | None) -> None:
        """Record the new deadline of a lease, if a stream handed the delivery out."""
        stream = self.held.get(held)
        if stream is not None and deadline is not None:
            stream.extend(held, deadline)
