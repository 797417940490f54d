"""The verbs for programs without an event loop: every call blocks until its answer.

::

    with penstock.sync.connect("http://localhost:8080") as q:  # or penstock.sync.open(url)
        q.publish("orders", {"order": 7}, headers={"amount": 250})
        for delivery in q.consume("billing"):
            with delivery:  # ack on exit, nack on exception, lease extended while it runs
                charge(delivery.payload)

It runs the async code in an event loop in a thread of its own; the blocking classes are
generated. Threads may share one object. Inside an event loop it refuses to block.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock import opening
from penstock.api import QueueApi
from penstock.broker import BrokerOptions
from penstock.sync.blocking import SyncBatchConsumption, SyncConsumption
from penstock.sync.lease import SyncLease
from penstock.sync.lease_batch import SyncLeaseBatch
from penstock.sync.loop import LoopThread
from penstock.sync.verbs import SyncVerbs

if TYPE_CHECKING:
    from penstock.client import ClientOptions
    from penstock.client.credentials import CredentialSource
    from penstock.client.transport import MakeTransport

__all__ = [
    "SyncBatchConsumption",
    "SyncConsumption",
    "SyncLease",
    "SyncLeaseBatch",
    "SyncVerbs",
    "connect",
    "open",
]


def open(  # noqa: A001  (the name is the verb: penstock.open, like the built-in)
    url: str,
    *,
    tenant: str = "default",
    options: BrokerOptions | None = None,
    keepers: bool = True,
) -> SyncVerbs:
    """Open the store at ``url``: ``with penstock.sync.open(url) as q``."""
    return _begin(lambda: opening.open(url, tenant=tenant, options=options, keepers=keepers))


def connect(
    url: str | Sequence[str],
    *,
    credential: CredentialSource | None = None,
    ca: str | ssl.SSLContext | None = None,
    cert: str | None = None,
    key: str | None = None,
    options: ClientOptions | None = None,
    transport: MakeTransport | None = None,
) -> SyncVerbs:
    """A client for the server at ``url``: ``with penstock.sync.connect(url) as q``."""
    # A program that embeds a store does not import an HTTP client.
    from penstock.client import connect  # noqa: PLC0415

    return _begin(
        lambda: connect(
            url,
            credential=credential,
            ca=ca,
            cert=cert,
            key=key,
            options=options,
            transport=transport,
        )
    )


def _begin(opening: Callable[[], Awaitable[QueueApi]]) -> SyncVerbs:
    async def opened() -> QueueApi:
        return await opening()

    loop = LoopThread()
    try:
        return SyncVerbs(loop, loop.run(opened))
    except BaseException:
        loop.close()
        raise
