"""``penstock.sync.open`` and ``penstock.sync.connect``: the same verbs as blocking calls."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock import opening
from penstock.broker import BrokerOptions
from penstock.sync.loop import LoopThread
from penstock.sync.verbs import SyncVerbs
from penstock.verbs import Verbs

if TYPE_CHECKING:
    from penstock.client import ClientOptions

__all__ = ["connect", "open"]


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
    url: str,
    *,
    credential: str | None = None,
    ca: str | ssl.SSLContext | None = None,
    options: ClientOptions | None = None,
) -> SyncVerbs:
    """A client for the server at ``url``: ``with penstock.sync.connect(url) as q``."""
    # A program that embeds a store does not import an HTTP client.
    from penstock.client import connect  # noqa: PLC0415

    return _begin(lambda: connect(url, credential=credential, ca=ca, options=options))


def _begin(opening: Callable[[], Awaitable[Verbs]]) -> SyncVerbs:
    async def opened() -> Verbs:
        return await opening()

    loop = LoopThread()
    try:
        return SyncVerbs(loop, loop.run(opened))
    except BaseException:
        loop.close()
        raise
