"""Claims whose callers were cancelled: no caller has their receipts, so they are released.

A release uses no attempt. Without it the deliveries would be in flight until their leases lapse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress

from penstock.errors import PenstockError
from penstock.model.delivery import Delivery, Release
from penstock.storage.contract import Engine

__all__ = ["AbandonedClaims"]


class AbandonedClaims:
    """The releases that are in progress for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._releases: set[asyncio.Task[None]] = set()

    def release(self, tenant: str, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries, in a task."""
        if deliveries:
            self._start(self._release(tenant, queue, deliveries))

    def release_granted(self, tenant: str, queue: str, claim: Awaitable[list[Delivery]]) -> None:
        """Release what a claim in progress will grant, in a task."""
        self._start(self._release_granted(tenant, queue, claim))

    async def close(self) -> None:
        """Wait for all releases."""
        if self._releases:
            await asyncio.wait(self._releases)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps weak references only.
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release_granted(
        self, tenant: str, queue: str, claim: Awaitable[list[Delivery]]
    ) -> None:
        with suppress(PenstockError):  # Nothing was granted.
            await self._release(tenant, queue, await claim)

    async def _release(self, tenant: str, queue: str, deliveries: Sequence[Delivery]) -> None:
        # The queue or the store may be gone, or the store cannot commit. Nothing is lost: the
        # leases lapse.
        with suppress(PenstockError):
            releases = [Release(delivery.receipt) for delivery in deliveries]
            await self._engine.settle(tenant, queue, releases)
