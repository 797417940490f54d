"""Queue and topic policies over HTTP. All verbs set a state, so all may be retried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Unpack

import msgspec

from penstock.broker.queues import new_policy, to_start
from penstock.client.calling import read
from penstock.client.scope import Scope, encoded
from penstock.client.transport import Request
from penstock.errors import NotFound, UnknownQueue, UnknownTopic
from penstock.model.limits import check_name, check_queue_name
from penstock.model.policy_fields import PolicyChanges, PolicyFields
from penstock.model.queue import (
    IfExists,
    QueueInfo,
    Start,
    TopicPolicy,
    check_labels,
    check_topic_policy,
    plain_fields,
)
from penstock.wire.bodies import QueueList, TopicInfo, TopicList
from penstock.wire.codecs import encode_msgpack
from penstock.wire.problems import read_problem, to_error

__all__ = ["Queues"]

_INFO: Final = msgspec.msgpack.Decoder(QueueInfo)
_INFOS: Final = msgspec.msgpack.Decoder(QueueList)
_TOPIC: Final = msgspec.msgpack.Decoder(TopicInfo)
_TOPICS: Final = msgspec.msgpack.Decoder(TopicList)
_NOT_FOUND: Final = 404


class Queues(Scope):
    """The verbs on queues and topics."""

    async def create_queue(
        self,
        name: str,
        filter: str = "TRUE",
        *,
        start: str | Start = "latest",
        **policy: Unpack[PolicyFields],
    ) -> QueueInfo:
        """Create a queue; ``QueueExists`` if there is one with another policy.

        ``start`` other than ``latest`` also takes older messages; the router catches the queue up.
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

    async def _create(
        self, name: str, given: PolicyChanges, start: str | Start, if_exists: IfExists
    ) -> QueueInfo:
        check_name(name, "queue")
        fields = plain_fields(given)
        body = encoded(fields, lambda: new_policy(fields))
        query = (
            ("start", _start(to_start(start))),
            ("if_exists", None if if_exists is IfExists.REPLACE else if_exists.value),
        )
        return read(_INFO, await self._send("PUT", f"/v1/queues/{name}", body, query=query))

    async def update_queue(self, name: str, **changes: Unpack[PolicyChanges]) -> QueueInfo:
        """Change some fields of a queue's policy and keep the others."""
        check_name(name, "queue")
        fields = plain_fields(changes)
        body = encoded(fields, lambda: new_policy(fields))
        return read(_INFO, await self._send("PATCH", f"/v1/queues/{name}", body))

    async def queue(self, name: str) -> QueueInfo:
        """The queue's policy and state."""
        return await self._get(_INFO, f"/v1/queues/{check_queue_name(name)}")

    async def queues(self, *, labels: Mapping[str, str] | None = None) -> tuple[QueueInfo, ...]:
        """The queues by name: all, or those that have all of these labels."""
        wanted = check_labels({} if labels is None else labels)
        label = ",".join(f"{name}={value}" for name, value in sorted(wanted.items()))
        query = (("label", label or None),)
        return (await self._get(_INFOS, "/v1/queues", query=query)).queues

    async def delete_queue(self, name: str) -> None:
        """Remove a queue, its deliveries and its dead letters; the log stays."""
        await self._delete(f"/v1/queues/{check_name(name, 'queue')}", UnknownQueue)

    async def pause(self, queue: str) -> None:
        """Hand out nothing until ``resume``."""
        await self._send("POST", f"/v1/queues/{check_queue_name(queue)}/pause")

    async def resume(self, queue: str) -> None:
        """Hand out deliveries again."""
        await self._send("POST", f"/v1/queues/{check_queue_name(queue)}/resume")

    async def put_topic(self, name: str, policy: TopicPolicy | None = None) -> None:
        """Register a topic, or replace its policy."""
        checked = check_topic_policy(TopicPolicy() if policy is None else policy)
        check_name(name, "topic")
        await self._send("PUT", f"/v1/topics/{name}", encode_msgpack(checked))

    async def topic(self, name: str) -> TopicPolicy | None:
        """The topic's policy, or None when it is not registered."""
        try:
            found = await self._get(_TOPIC, f"/v1/topics/{check_name(name, 'topic')}")
        except UnknownTopic:
            return None
        return found.policy

    async def topics(self) -> tuple[tuple[str, TopicPolicy], ...]:
        """All registered topics by name."""
        found = await self._get(_TOPICS, "/v1/topics")
        return tuple((topic.name, topic.policy) for topic in found.topics)

    async def delete_topic(self, name: str) -> None:
        """Remove a topic's policy; its messages stay."""
        await self._delete(f"/v1/topics/{check_name(name, 'topic')}", UnknownTopic)

    async def _delete(self, path: str, gone: type[NotFound]) -> None:
        request = Request("DELETE", self._target(path), accepts=_NOT_FOUND)
        answer = await self._calls.call(request)
        if answer.status == _NOT_FOUND:
            error = to_error(read_problem(answer.status, answer.body))
            # An earlier attempt may have deleted it.
            if not (answer.repeated and isinstance(error, gone)):
                raise error


def _start(start: Start) -> str | None:
    if start.at in {Start.OFFSET, Start.TIME}:
        return f"{start.at}:{start.value}"
    return None if start.at == Start.LATEST else start.at
