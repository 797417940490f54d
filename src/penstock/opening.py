"""``penstock.open(url)``: opens the store at a URL as a broker with its keepers."""

from __future__ import annotations

from collections.abc import Generator

from penstock.broker import Broker, BrokerOptions
from penstock.keepers import Keepers
from penstock.model.limits import check_limits, check_name
from penstock.model.server_settings import NEAR
from penstock.storage.engines import open_engine

__all__ = ["Opening", "open"]


class Opening:
    """A store that is not open yet: ``await`` it, or use it in ``async with``."""

    def __init__(self, url: str, tenant: str, options: BrokerOptions, *, keepers: bool) -> None:
        self._url = url
        self._tenant = tenant
        self._options = options
        self._keepers = keepers
        self._broker: Broker | None = None

    def __await__(self) -> Generator[object, None, Broker]:
        return self._open().__await__()

    async def __aenter__(self) -> Broker:
        self._broker = await self._open()
        return self._broker

    async def __aexit__(self, *error: object) -> None:
        if self._broker is not None:
            await self._broker.close()

    async def _open(self) -> Broker:
        check_name(self._tenant, "tenant")
        check_limits(self._options.engine.limits)
        engine = await open_engine(self._url, self._options.engine)
        if not self._keepers:
            return Broker(engine, self._options, self._tenant)
        near = NEAR if self._options.routing == "pipeline" else None
        keepers = Keepers(engine, engine.clock, near=near, options=self._options)
        broker = Broker(engine, self._options, self._tenant, background=keepers)
        keepers.start()
        return broker


def open(  # noqa: A001  (the name is the verb: penstock.open, like the built-in)
    url: str,
    *,
    tenant: str = "default",
    options: BrokerOptions | None = None,
    keepers: bool = True,
) -> Opening:
    """Open the store at ``url``: ``async with penstock.open(url) as q``.

    Keepers sweep it and catch its queues up in the background until it is closed. Without
    them the caller has to call ``sweep`` and ``route``, as a test with its own clock does.
    """
    return Opening(url, tenant, options or BrokerOptions(), keepers=keepers)
