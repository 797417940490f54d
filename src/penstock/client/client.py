"""The client: every verb a program has, over HTTP.

It means the same by each as an embedded broker, down to the errors: what the server raised is
raised here again. What can go wrong beside is ``Unreachable``, when no answer came after all
retries, and ``BadReply``, when what answered is not Penstock. One client serves any number of
tasks of one event loop, for the tenant that its credential belongs to.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from penstock.client.claim import Claiming
from penstock.client.queues import Queues
from penstock.client.reading import Reading
from penstock.client.replay import Replaying
from penstock.client.runs import Runs
from penstock.client.settle import Settling
from penstock.client.writes import Writes
from penstock.consume.consuming import Consuming

__all__ = ["Client"]

#: How long closing waits for what is under way; a server that is away does not hold it up longer.
DRAIN_MS: Final = 5_000


class Client(Queues, Settling, Claiming, Replaying, Reading, Runs, Writes, Consuming):
    """The verbs, over HTTP."""

    @property
    def url(self) -> str:
        """Where the server is, without a credential."""
        return self._address.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what waits, wait a moment for what is under way, then let go.

        Whoever still waits for an answer then is told ``StoreClosed``: the outcome is unknown.
        """
        try:
            async with asyncio.timeout(DRAIN_MS / 1000):
                await self.end_consuming()
                await self._publishes.drain()
                await self._settlements.drain()
                await self._calls.drain()
        except TimeoutError:
            pass
        finally:
            await self._calls.close()
            await self._publishes.drain()
            await self._settlements.drain()
