"""The broker: every verb a program has, over whatever engine is below.

It refuses bad input before anything is touched (E1), applies the limits that need no state,
and answers in the words of docs/semantics.md. One broker serves one tenant;
``for_tenant`` gives another's, over the same engine (T1). The verbs are in the rooms
beside this one, by what they are about.

Waiting, payload schemas and keepers come with the service; until then a program that
embeds Penstock calls ``sweep`` and ``route`` itself.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.broker.claim import Claiming
from penstock.broker.queues import Queues
from penstock.broker.reading import Reading
from penstock.broker.replay import Replaying
from penstock.broker.scope import BrokerOptions
from penstock.broker.settle import Settling
from penstock.model.limits import DLQ_SUFFIX, check_name
from penstock.model.queue import QueueInfo, QueuePolicy, Start
from penstock.storage.contract import Engine

__all__ = ["Broker"]


class Broker(Queues, Settling, Claiming, Replaying, Reading):
    """The verbs, for one tenant."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str = "default") -> None:
        super().__init__(engine, options, tenant)
        self._views: dict[str, Broker] = {self.tenant: self}

    @property
    def engine(self) -> Engine:
        """The engine below, for those who need the contract itself."""
        return self._engine

    def for_tenant(self, tenant: str) -> Broker:
        """The same store as another tenant sees it; closing either closes both."""
        view = self._views.get(check_name(tenant, "tenant"))
        if view is None:
            view = Broker(self._engine, self._options, tenant)
            self._views[tenant] = view
            view._views = self._views
        return view

    async def _put(self, name: str, policy: QueuePolicy, start: Start) -> QueueInfo:
        info = await super()._put(name, policy, start)
        for queue in (name, name + DLQ_SUFFIX):
            throttle = self._throttles.get(queue)
            if throttle is not None:
                throttle.doubt()
        return info

    async def delete_queue(self, name: str) -> None:
        """Remove a queue, its deliveries and its dead letters; the log stays."""
        await super().delete_queue(name)
        for queue in (name, name + DLQ_SUFFIX):
            self._throttles.pop(queue, None)

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
        """Commit what is under way and release the store."""
        for view in self._views.values():
            await view._gathering.drain()  # noqa: SLF001  (another broker of this store)
        await self._engine.close()
