"""Appends dead-letter copies and events to the log, in the commit that ends their deliveries (S3).

A move only adds the ended delivery to ``Stage.ended``: the verb may be in the middle of a bucket,
or have reserved offsets of the log. The verb appends the copies when it has made its moves, before
it first waits. Nothing refuses a copy: ``max_depth``, schemas and the limits of a publish do not
apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from penstock.errors import PenstockError
from penstock.model.dead_letter_copies import EndedDelivery, dead_letter_copy
from penstock.model.delivery_events import delivery_event
from penstock.model.message import Outgoing
from penstock.model.queue_events import EVENTS_TOPIC
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.guarded import Guarded
from penstock.storage.keyvalue.partitions import Partitions
from penstock.storage.keyvalue.passing_time import free_departed
from penstock.storage.keyvalue.publish import Plan
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.tenant import Tenant

__all__ = ["CopyingVerbs", "append_copies"]


def append_copies(core: Core) -> Iterator[None]:
    """Append the copies of the deliveries that have ended, by message id, one per step."""
    ended, core.stage.ended = core.stage.ended, []
    ended.sort(key=lambda item: int(item[2].message.id))
    for tenant, topic, delivery in ended:
        yield from _append(core, core.tenant(tenant), topic, delivery)
        yield


def _append(core: Core, tenant: Tenant, topic: str, ended: EndedDelivery) -> Iterator[None]:
    # At the limit of queues none is created, because that would refuse the copy.
    may_create = len(tenant.queues) < core.options.limits.queues
    plan = Plan(core, tenant, ended.at)
    is_event = topic == EVENTS_TOPIC
    new = delivery_event(ended) if is_event else dead_letter_copy(ended, auto_create=may_create)
    plan.take((Outgoing(topic, (new,)),))
    yield from plan.decide()
    yield from plan.apply()


class CopyingVerbs(Guarded):
    """The base of verbs that end deliveries. Each appends the copies before it first waits."""

    _core: Core

    @asynccontextmanager
    async def _copies_appended(self) -> AsyncIterator[None]:
        """Append the copies at the end, also if the verb raises after some of its moves."""
        try:
            yield
        finally:
            if self._core.stage.ended:
                await self._append_copies()

    async def _append_copies(self) -> None:
        """Append the copies; a failure would leave deliveries without them, so it stops the store.

        Callers test ``Stage.ended`` first, because most queues have no dead-letter topic.
        """
        steps = append_copies(self._core)
        if not self._begin_change(steps, _Begun()):
            await self._finish_change(steps, _Begun())

    async def _free_departed(self, queue: Queue, partitions: Partitions, now: int) -> bool:
        """Free some partitions of former consumers. Returns whether there are more."""
        async with self._copies_appended():
            return free_departed(queue, partitions, now)

    def _then_copies(self, steps: Iterator[None]) -> Iterator[None]:
        """The steps, which may refuse some of their moves, and then those that append copies."""
        try:
            yield from steps
        except PenstockError:
            yield from self._copy_steps()
            raise
        yield from self._copy_steps()

    def _copy_steps(self) -> Iterator[None]:
        try:
            yield from append_copies(self._core)
        except Exception as error:
            raise self._broken(error, half_done=True) from error


class _Begun:
    """A change that has begun."""

    is_half_done = True
