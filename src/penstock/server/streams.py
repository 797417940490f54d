"""The open streams and their credit: which receipts each has handed out and not settled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from penstock.model.delivery import Receipt

__all__ = ["Stream", "Streams"]

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
        #: To the lease's deadline.
        self.held: dict[Held, int] = {}

    def room(self, now: int) -> int:
        """How many more may be handed out; lapsed leases give their credit back."""
        if len(self.held) >= self._credit:
            for held in [one for one, deadline in self.held.items() if deadline < now]:
                self._streams.settled(held)
        return max(0, self._credit - len(self.held))

    def hand_out(self, receipt: Receipt, deadline: int) -> None:
        """Count a delivery against the credit."""
        held = (self._tenant, self._queue, receipt)
        self.held[held] = deadline
        self._streams.held[held] = self

    def give(self) -> None:
        """Some credit came back."""
        self._given.set()

    async def credit_given(self, timeout_ms: int) -> None:
        """Wait for credit, or long enough to look for lapsed leases."""
        self._given.clear()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._given.wait()
        except TimeoutError:
            pass


class Streams:
    """All open streams of a server."""

    def __init__(self) -> None:
        #: What has been handed out and not settled, by which stream.
        self.held: dict[Held, Stream] = {}

    @contextmanager
    def open(self, tenant: str, queue: str, credit: int) -> Iterator[Stream]:
        """A stream, until it is cut."""
        stream = Stream(self, tenant, queue, credit)
        try:
            yield stream
        finally:
            for held in stream.held:
                self.held.pop(held, None)

    def settled(self, held: Held) -> None:
        """A delivery is settled: if a stream handed it out, its credit comes back."""
        stream = self.held.pop(held, None)
        if stream is not None:
            stream.held.pop(held, None)
            stream.give()

    def extended(self, held: Held, deadline: int | None) -> None:
        """A lease is longer now."""
        stream = self.held.get(held)
        if stream is not None and deadline is not None:
            stream.held[held] = deadline
