"""The client: every verb of the public API, over HTTP.

Each verb behaves as on an embedded broker, down to the errors: the server's errors are raised
here. In addition there are ``Unreachable``, if no answer came after all retries, and ``BadReply``,
if the answer is not from Penstock. One client serves any number of tasks of one event loop, for
the tenant of its credential.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final, Self

from penstock.client.read_verbs import Reading
from penstock.client.replay import Replaying
from penstock.client.runs import Runs
from penstock.client.settle_and_claim import SettlingAndClaiming
from penstock.client.webhooks import Webhooks
from penstock.client.writes import Writes
from penstock.consume.consuming import Consuming

__all__ = ["Client"]

#: How long closing waits for calls in progress, for example to an unreachable server.
DRAIN_MS: Final = 5_000


class Client(Webhooks, SettlingAndClaiming, Replaying, Reading, Runs, Writes, Consuming):
    """The verbs, over HTTP."""

    @property
    def url(self) -> str:
        """The server's URL, without a credential."""
        return self._address.url

    def __await__(self) -> Generator[object, None, Self]:
        # ``await penstock.connect(url)`` reads like ``await penstock.open(url)``.
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is buffered, wait a moment for calls in progress, then disconnect.

        Calls still waiting then raise ``StoreClosed``: their outcome is unknown.
        """
        try:
            async with asyncio.timeout(DRAIN_MS / 1000):
                await self.end_consuming()
                await self._publishes.drain()
                await self._settlements.drain()
                await self._claims.drain()
                await self._calls.drain()
        except TimeoutError:
            pass
        finally:
            await self._calls.close()
            await self._publishes.drain()
            await self._settlements.drain()
            await self._claims.drain()
