"""The broker: every verb of the public API, over any engine.

It refuses bad input before anything is touched (E1), applies the limits that need no state
and implements waiting. One broker serves one tenant; ``for_tenant`` returns the broker of
another tenant over the same engine (T1). The other modules of this package implement the
verbs by subject.

Keepers, in the layer above, do the background work (sweeping, catching up).
``penstock.open`` runs them beside the broker. A program that constructs a ``Broker`` itself
has to sweep and route.
"""

from __future__ import annotations

from typing import Protocol, Self

from penstock.broker.failures import Failing
from penstock.broker.own_entries import OwnEntries
from penstock.broker.read_verbs import Reading
from penstock.broker.replay import Replaying
from penstock.broker.runs import Runs
from penstock.broker.scope import BrokerOptions
from penstock.broker.settle_and_claim import SettlingAndClaiming
from penstock.broker.waiting import Waiting
from penstock.broker.webhooks import Webhooks
from penstock.broker.writes import Writes
from penstock.consume.consuming import Consuming
from penstock.model.limits import DLQ_SUFFIX, check_name
from penstock.model.queue import IfExists, QueueInfo, QueuePolicy, Start
from penstock.model.reports import KeeperReport
from penstock.storage.contract import Engine

__all__ = ["Background", "Broker"]


class Background(Protocol):
    """The background duties of a store, for all its tenants, until the store is closed."""

    def behind(self) -> None:
        """Report that a queue was put that has to be caught up."""
        ...

    def webhooks_changed(self) -> None:
        """Report that a webhook was put or removed."""
        ...

    def reports(self) -> tuple[KeeperReport, ...]:
        """The state of every duty."""
        ...

    async def stop(self) -> None:
        """Finish the work in progress and start nothing more. Stopping twice is fine."""
        ...


class Broker(
    Webhooks, SettlingAndClaiming, Replaying, Failing, Reading, Runs, Writes, OwnEntries, Consuming
):
    """The verbs, for one tenant."""

    def __init__(
        self,
        engine: Engine,
        options: BrokerOptions,
        tenant: str = "default",
        *,
        background: Background | None = None,
    ) -> None:
        super().__init__(engine, options, tenant)
        self._waiting = Waiting.of(engine, self._clock, options.listener)
        self._background = background
        self._views: dict[str, Broker] = {self.tenant: self}

    @property
    def engine(self) -> Engine:
        """The engine below, for callers that need the storage contract itself."""
        return self._engine

    @property
    def keepers(self) -> tuple[KeeperReport, ...]:
        """Reports of the store's background duties; empty if none run in this process."""
        return () if self._background is None else self._background.reports()

    def for_tenant(self, tenant: str) -> Broker:
        """The same store for another tenant; closing either broker closes both."""
        view = self._views.get(check_name(tenant, "tenant"))
        if view is None:
            view = Broker(self._engine, self._options, tenant, background=self._background)
            self._views[tenant] = view
            view._views = self._views
        return view

    async def _put(
        self,
        name: str,
        policy: QueuePolicy,
        start: Start,
        if_exists: IfExists = IfExists.REPLACE,
        *,
        was: QueuePolicy | None = None,
    ) -> QueueInfo:
        info = await super()._put(name, policy, start, if_exists, was=was)
        for queue in (name, name + DLQ_SUFFIX):
            throttle = self._throttles.get(queue)
            if throttle is not None:
                throttle.doubt()
            self._waiting.changed(self.tenant, queue)
        if info.cursor is not None and self._background is not None:
            self._background.behind()
        return info

    def _webhooks_changed(self) -> None:
        if self._background is not None:
            self._background.webhooks_changed()

    async def _delete(self, name: str) -> None:
        await super()._delete(name)
        for queue in (name, name + DLQ_SUFFIX):
            self._throttles.pop(queue, None)
            self._waiting.changed(self.tenant, queue)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all waits, commit the calls in progress and release the store."""
        for view in tuple(self._views.values()):
            await view.end_consuming()
        await self._waiting.close()
        if self._background is not None:
            await self._background.stop()
        drained = 0
        while drained < len(self._views):
            # A tenant that makes its first call during a drain adds its broker at the end.
            view = tuple(self._views.values())[drained]
            await view._batcher.drain()  # noqa: SLF001  (another broker of this store)
            drained += 1
        await self._engine.close()
