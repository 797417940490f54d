"""The broker's part of queue and topic policies: valid values or a typed error (E1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, Unpack

from penstock.broker.schemas import compile_schema
from penstock.broker.scope import BrokerOptions, Scope
from penstock.errors import BadInput, QueueChanged
from penstock.filters import parse
from penstock.model.limits import MAX_OFFSET, MAX_TIME_MS, check_name, check_queue_name, shown
from penstock.model.policy_fields import PolicyChanges, PolicyFields
from penstock.model.queue import (
    IfExists,
    QueueInfo,
    QueuePolicy,
    Start,
    TopicPolicy,
    changed_policy,
    check_labels,
    check_topic_policy,
    plain_fields,
)
from penstock.model.queue_events import MessageEvent, check_unreserved
from penstock.storage.contract import Engine

__all__ = ["Queues", "new_policy", "preview_of", "to_start", "updated_policy"]


#: How often a change is tried, if another server changes the queue every time.
_TRIES: Final = 20


class Queues(Scope):
    """The verbs on queues and topics."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        super().__init__(engine, options, tenant)
        #: Serializes policy changes: each reads what the previous one wrote.
        self._policies = asyncio.Lock()
        self._default_policy = options.engine.default_policy

    async def create_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue; ``QueueExists`` if there is one with another policy.

        ``start`` other than ``latest`` also takes older messages; a keeper catches the queue up.
        """
        return await self._create(name, {**policy, "filter": filter}, start, IfExists.REFUSE)

    async def ensure_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue, or leave the one of that name alone, even if its policy differs."""
        return await self._create(name, {**policy, "filter": filter}, start, IfExists.KEEP)

    async def put_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue, or replace the whole policy of the one of that name."""
        return await self._create(name, {**policy, "filter": filter}, start, IfExists.REPLACE)

    async def update_queue(self, name: str, **changes: Unpack[PolicyChanges]) -> QueueInfo:
        """Change some fields of a queue's policy and keep the others."""
        check_name(name, "queue")
        given: Collection[MessageEvent] = ()

        def change(policy: QueuePolicy) -> QueuePolicy:
            nonlocal given
            changed = updated_policy(policy, changes, self._default_policy)
            given = changed.events
            return changed

        async with self._policies:
            info = await self._change(name, change)
            if "events" in changes:
                await self._events_set(name, given)
        return info

    async def _create(
        self, name: str, fields: PolicyChanges, start: str | Start, if_exists: IfExists
    ) -> QueueInfo:
        check_unreserved(check_name(name, "queue"), "queue")
        wanted = new_policy(fields, self._default_policy)
        begin = to_start(start)
        async with self._policies:
            return await self._put(name, wanted, begin, if_exists)

    async def queue(self, name: str) -> QueueInfo:
        """The queue's policy and state."""
        return await self._engine.get_queue(self.tenant, check_queue_name(name))

    async def queues(self, *, labels: Mapping[str, str] | None = None) -> tuple[QueueInfo, ...]:
        """The queues by name: all, or those that have all of these labels."""
        wanted = check_labels({} if labels is None else labels).items()
        found = await self._engine.list_queues(self.tenant)
        return tuple(info for info in found if wanted <= info.policy.labels.items())

    async def delete_queue(self, name: str) -> None:
        """Remove a queue, its deliveries and its dead letters; the log stays."""
        check_unreserved(check_name(name, "queue"), "queue")
        async with self._policies:
            await self._delete(name)

    async def pause(self, queue: str) -> None:
        """Hand out nothing until ``resume``."""
        check_queue_name(queue)
        async with self._policies:
            await self._engine.pause(self.tenant, queue, True)

    async def resume(self, queue: str) -> None:
        """Hand out deliveries again."""
        check_queue_name(queue)
        async with self._policies:
            await self._engine.pause(self.tenant, queue, False)

    async def put_topic(self, name: str, policy: TopicPolicy | None = None) -> None:
        """Register a topic, or replace its policy; a schema applies to publishes from then on."""
        checked = check_topic_policy(TopicPolicy() if policy is None else policy)
        check_unreserved(check_name(name, "topic"), "topic")
        compile_schema(checked)
        try:
            await self._engine.put_topic(self.tenant, name, checked)
        finally:
            # A call that was cancelled may have taken effect.
            self._schemas.forget(name)

    async def topic(self, name: str) -> TopicPolicy | None:
        """The topic's policy, or None when it is not registered."""
        return await self._engine.get_topic(self.tenant, check_name(name, "topic"))

    async def topics(self) -> tuple[tuple[str, TopicPolicy], ...]:
        """All registered topics by name."""
        return await self._engine.list_topics(self.tenant)

    async def delete_topic(self, name: str) -> None:
        """Remove a topic's policy; its messages stay."""
        check_name(name, "topic")
        try:
            await self._engine.delete_topic(self.tenant, name)
        finally:
            self._schemas.forget(name)

    async def _events_set(self, name: str, events: Collection[MessageEvent]) -> None:
        """Report which events the caller has decided that the queue reports."""

    async def _put(
        self,
        name: str,
        policy: QueuePolicy,
        start: Start,
        if_exists: IfExists = IfExists.REPLACE,
        *,
        was: QueuePolicy | None = None,
    ) -> QueueInfo:
        return await self._engine.put_queue(self.tenant, name, policy, start, if_exists, was=was)

    async def _change(self, name: str, change: Callable[[QueuePolicy], QueuePolicy]) -> QueueInfo:
        """Change the policy of a queue, again if another server changes it meanwhile."""
        for _ in range(_TRIES):
            policy = (await self._engine.get_queue(self.tenant, name)).policy
            with suppress(QueueChanged):
                return await self._put(name, change(policy), Start(), was=policy)
        raise QueueChanged(f"The policy of queue {name!r} keeps changing.", field="queue")

    async def _delete(self, name: str) -> None:
        await self._engine.delete_queue(self.tenant, name)


def new_policy(fields: Mapping[str, object], default: QueuePolicy | None = None) -> QueuePolicy:
    """A checked policy from keyword arguments; fields that are missing or None have defaults."""
    default = QueuePolicy() if default is None else default
    return updated_policy(default, fields, default)


def updated_policy(
    policy: QueuePolicy, fields: Mapping[str, object], default: QueuePolicy
) -> QueuePolicy:
    """The policy with some fields changed, checked; fields that are None revert to the default."""
    fields = plain_fields(fields)
    reverted = {
        name: getattr(default, name)
        for name, value in fields.items()
        if value is None and name != "filter" and hasattr(default, name)
    }
    changed = changed_policy(policy, {**fields, **reverted})
    parse(changed.filter)
    return changed


def to_start(start: object) -> Start:
    """``latest``, ``earliest``, or a ``Start`` with an offset or a time."""
    if isinstance(start, str):
        start = Start(start)
    if not isinstance(start, Start) or start.at not in Start.KINDS:
        raise BadInput(
            f"start is {start!r}; it must be latest, earliest, an offset or a time.", field="start"
        )
    most = MAX_TIME_MS if start.at == Start.TIME else MAX_OFFSET
    if type(start.value) is not int or not 0 <= start.value <= most:
        raise BadInput(
            f"start has the value {shown(start.value)}; it must be from 0 to {most}.",
            field="start",
            limit=most,
        )
    return start


def preview_of(filter: str, start: Start) -> tuple[str, int]:
    """The filter and the offset for a preview of the entries that a new queue would take.

    A queue that starts at ``latest`` takes none of them; its preview shows the whole log.
    """
    if start.at == Start.TIME:
        return f"({filter}) AND published_at >= {start.value}", 0
    return filter, start.value if start.at == Start.OFFSET else 0
