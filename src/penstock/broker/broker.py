"""The broker: every verb a program has, over whatever engine is below.

It refuses bad input before anything is touched (E1), applies the limits that need no state,
lets callers wait, and answers in the words of docs/semantics.md. One broker serves one
tenant; ``for_tenant`` gives another's, over the same engine (T1). The verbs are in the rooms
beside this one, by what they are about.

What has to happen although nobody calls (sweeping, catching up) is done by keepers, in the
layer above. ``penstock.open`` runs them beside the broker; one that is made without them is
swept and routed by whoever made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from penstock.broker.claim import Claiming
from penstock.broker.own_entries import OwnEntries
from penstock.broker.queues import Queues
from penstock.broker.reading import Reading
from penstock.broker.replay import Replaying
from penstock.broker.runs import Runs
from penstock.broker.scope import BrokerOptions
from penstock.broker.settle import Settling
from penstock.broker.waiting import Waiting
from penstock.broker.writes import Writes
from penstock.consume.consuming import Consuming
from penstock.model.delivery import Settlement, SettleReply
from penstock.model.limits import DLQ_SUFFIX, check_name
from penstock.model.message import Outgoing
from penstock.model.queue import QueueInfo, QueuePolicy, Start
from penstock.model.reports import KeeperReport
from penstock.storage.contract import Engine

__all__ = ["Background", "Broker"]


class Background(Protocol):
    """What runs beside a broker, for all its tenants, until the store is closed."""

    def behind(self) -> None:
        """A queue was put that has to be caught up."""
        ...

    def reports(self) -> tuple[KeeperReport, ...]:
        """What became of every duty so far."""
        ...

    async def stop(self) -> None:
        """Finish what is under way, and begin nothing more. Stopping twice is fine."""
        ...


class Broker(Queues, Settling, Claiming, Replaying, Reading, Runs, Writes, OwnEntries, Consuming):
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
        """The engine below, for those who need the contract itself."""
        return self._engine

    @property
    def keepers(self) -> tuple[KeeperReport, ...]:
        """What the background duties of the store did so far; none if none run here."""
        return () if self._background is None else self._background.reports()

    def for_tenant(self, tenant: str) -> Broker:
        """The same store as another tenant sees it; closing either closes both."""
        view = self._views.get(check_name(tenant, "tenant"))
        if view is None:
            view = Broker(self._engine, self._options, tenant, background=self._background)
            self._views[tenant] = view
            view._views = self._views
        return view

    async def settle(
        self,
        queue: str,
        settlements: Sequence[Settlement],
        *,
        publish: Sequence[Outgoing] = (),
    ) -> SettleReply:
        """End claims, each on its own; with ``publish``, all of it in one commit or nothing."""
        reply = await super().settle(queue, settlements, publish=publish)
        self._waiting.settled(self.tenant, queue)
        return reply

    async def _put(self, name: str, policy: QueuePolicy, start: Start) -> QueueInfo:
        info = await super()._put(name, policy, start)
        for queue in (name, name + DLQ_SUFFIX):
            throttle = self._throttles.get(queue)
            if throttle is not None:
                throttle.doubt()
            self._waiting.changed(self.tenant, queue)
        if info.cursor is not None and self._background is not None:
            self._background.behind()
        return info

    async def delete_queue(self, name: str) -> None:
        """Remove a queue, its deliveries and its dead letters; the log stays."""
        await super().delete_queue(name)
        for queue in (name, name + DLQ_SUFFIX):
            self._throttles.pop(queue, None)
            self._waiting.changed(self.tenant, queue)

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
        """End all waits, commit what is under way and release the store."""
        for view in tuple(self._views.values()):
            await view.end_consuming()
        await self._waiting.close()
        if self._background is not None:
            await self._background.stop()
        drained = 0
        while drained < len(self._views):
            # A tenant that makes its first call during a drain adds its view at the end.
            view = tuple(self._views.values())[drained]
            await view._gathering.drain()  # noqa: SLF001  (another broker of this store)
            drained += 1
        await self._engine.close()
