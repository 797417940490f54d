"""Queues: policies, pausing, catching up, and dry runs of a filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from penstock.broker.queues import new_policy, preview_of, to_start
from penstock.errors import (
    BadInput,
    BadPolicy,
    Conflict,
    OtherStore,
    QueueExists,
    QueueNotEmpty,
    TooLarge,
    TooManyQueues,
    TooManyUnindexedFilters,
    UnknownQueue,
)
from penstock.model.delivery import QueueStats, RouteReply
from penstock.model.limits import MAX_ASSIGN, shown
from penstock.model.queue import IfExists, QueueInfo, QueuePolicy, Start
from penstock.server.call import Call
from penstock.server.request_parsing import Body, ListBody
from penstock.server.routing import ANY_NAME, Empty, Need, Route
from penstock.wire.bodies import AssignBody, DryRunReply, QueueList, RouteBody
from penstock.wire.codecs import JSON

__all__ = ["ROUTES", "check_dead_letter_topic"]

_MAX_DIGITS: Final = 18


class PutQueueQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where in the log a new queue starts, and whether to only preview it."""

    start: str = "latest"
    """``latest``, ``earliest``, ``offset:N`` or ``time:MS``."""
    dry_run: bool = False
    if_exists: IfExists = IfExists.REPLACE
    """``replace`` the policy of an existing queue, ``keep`` it, or ``refuse`` another policy."""


class ListQueuesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which queues to list."""

    label: str | None = None
    """``name=value``, several separated by commas: the queues that have all of them."""


class PolicyBody(Body[dict[str, Any]]):
    """The given fields of a policy; the broker checks each (E1)."""

    def __init__(self) -> None:
        super().__init__(dict[str, Any], required=False)
        self.json_kind = QueuePolicy

    def decode(self, body: bytes, media: str) -> dict[str, Any]:
        """The fields; an empty body has none."""
        return super().decode(body, media) if body else {}


async def put_queue(
    call: Call, query: PutQueueQuery, body: dict[str, Any]
) -> QueueInfo | DryRunReply:
    """Create the queue, or do with the existing one what ``if_exists`` says."""
    start = _start(query.start)
    check_dead_letter_topic(call, body)
    if query.dry_run:
        return await _dry_run(call, start, body)
    broker = call.broker
    verbs = {
        IfExists.REPLACE: broker.put_queue,
        IfExists.KEEP: broker.ensure_queue,
        IfExists.REFUSE: broker.create_queue,
    }
    return await verbs[query.if_exists](call.name, start=start, **_named(body))


async def _dry_run(call: Call, start: Start, fields: dict[str, Any]) -> DryRunReply:
    policy = new_policy(fields, call.broker.options.engine.default_policy)
    wanted, first = preview_of(policy.filter, start)
    preview = await call.scan(call.broker.preview(wanted, start=first))
    words = f"{preview.count} of {preview.scanned} messages in the log match the filter"
    if start.at == Start.LATEST:
        words += "; a queue that starts at latest takes none of them, only later ones"
    return DryRunReply(policy, preview, words + ".")


async def patch_queue(call: Call, query: Empty, body: dict[str, Any]) -> QueueInfo:  # noqa: ARG001
    """Change the given fields of the policy; the others stay."""
    check_dead_letter_topic(call, body)
    return await call.broker.update_queue(call.name, **_named(body))


async def get_queue(call: Call, query: Empty, body: Empty) -> QueueInfo:  # noqa: ARG001
    """The queue and its policy."""
    return await call.broker.queue(call.name)


async def get_stats(call: Call, query: Empty, body: Empty) -> QueueStats:  # noqa: ARG001
    """The queue's statistics."""
    return await call.broker.stats(call.name)


async def list_queues(call: Call, query: ListQueuesQuery, body: Empty) -> QueueList:  # noqa: ARG001
    """The queues that the caller may consume from, by name."""
    queues = await call.broker.queues(labels=_labels(query.label))
    return QueueList(tuple(info for info in queues if call.credential.allows("read", info.name)))


async def delete_queue(call: Call, query: Empty, body: Empty) -> None:  # noqa: ARG001
    """Remove the queue, its deliveries and its dead letters."""
    await call.broker.delete_queue(call.name)


async def pause(call: Call, query: Empty, body: Empty) -> QueueInfo:  # noqa: ARG001
    """Hand out nothing until resumed."""
    await call.broker.pause(call.name)
    return await call.broker.queue(call.name)


async def resume(call: Call, query: Empty, body: Empty) -> QueueInfo:  # noqa: ARG001
    """Hand out deliveries again."""
    await call.broker.resume(call.name)
    return await call.broker.queue(call.name)


async def route(call: Call, query: Empty, body: RouteBody) -> RouteReply:  # noqa: ARG001
    """Catch the queue up by a number of log entries."""
    return await call.broker.route(call.name, body.limit)


async def assign(call: Call, query: Empty, body: AssignBody) -> RouteReply:  # noqa: ARG001
    """Give the queue the messages that an external router found for it."""
    return await call.broker.assign(
        call.name,
        filter=body.filter,
        start=body.start,
        end=body.end,
        offsets=body.offsets,
        store=body.store,
    )


def check_dead_letter_topic(call: Call, fields: Mapping[str, Any]) -> None:
    """Refuse a topic that the caller may not publish to: the queue will publish there."""
    topic = fields.get("dead_letter_topic")
    if isinstance(topic, str) and topic:
        call.check("publish", topic)


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    if "name" in fields or "start" in fields:
        wrong = "name" if "name" in fields else "start"
        raise BadPolicy(f"A queue policy has no field {wrong!r}.", field=wrong)
    return fields


def _labels(text: str | None) -> dict[str, str]:
    labels: dict[str, str] = {}
    for item in [] if text is None else text.split(","):
        name, equals, value = item.partition("=")
        if not equals or name in labels:
            raise BadInput(
                f"label is {shown(text)}; it must be name=value, several separated by commas.",
                field="label",
            )
        labels[name] = value
    return labels


def _start(text: str) -> Start:
    kind, colon, value = text.partition(":")
    if not colon:
        return to_start(kind)
    if not value.isascii() or not value.isdigit() or len(value) > _MAX_DIGITS:
        raise BadInput(f"start is {text[:100]!r}; the number is missing.", field="start")
    return to_start(Start(kind, int(value)))


_ADMIN: Final = Need("admin", "queue")
_READ: Final = Need("read", "queue")
_PATH: Final = "/v1/queues/{queue}"

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/queues",
        verb="list_queues",
        summary="The queues by name: all, or those with certain labels",
        need=Need("read", ANY_NAME),
        handler=list_queues,
        query=ListQueuesQuery,
        replies=((JSON, QueueList),),
        errors=(BadInput,),
    ),
    Route(
        method="PUT",
        path=_PATH,
        verb="put_queue",
        summary="Create a queue, or replace its policy; dry_run shows what it would take",
        need=_ADMIN,
        handler=put_queue,
        query=PutQueueQuery,
        body=PolicyBody(),
        replies=((JSON, QueueInfo | DryRunReply),),
        errors=(BadInput, QueueExists, QueueNotEmpty, TooManyQueues, TooManyUnindexedFilters),
    ),
    Route(
        method="PATCH",
        path=_PATH,
        verb="patch_queue",
        summary="Change some fields of a queue's policy",
        need=_ADMIN,
        handler=patch_queue,
        query=Empty,
        body=PolicyBody(),
        replies=((JSON, QueueInfo),),
        errors=(BadInput, UnknownQueue, QueueNotEmpty, TooManyUnindexedFilters),
    ),
    Route(
        method="GET",
        path=_PATH,
        verb="get_queue",
        summary="A queue and its policy",
        need=_READ,
        handler=get_queue,
        query=Empty,
        replies=((JSON, QueueInfo),),
        errors=(BadInput, UnknownQueue),
    ),
    Route(
        method="DELETE",
        path=_PATH,
        verb="delete_queue",
        summary="Remove a queue, its deliveries and its dead letters",
        need=_ADMIN,
        handler=delete_queue,
        query=Empty,
        status=204,
        errors=(BadInput, UnknownQueue),
    ),
    Route(
        method="GET",
        path=_PATH + "/stats",
        verb="stats",
        summary="Statistics of a queue",
        need=_READ,
        handler=get_stats,
        query=Empty,
        replies=((JSON, QueueStats),),
        errors=(BadInput, UnknownQueue),
    ),
    Route(
        method="POST",
        path=_PATH + "/pause",
        verb="pause",
        summary="Hand out nothing until resumed",
        need=_ADMIN,
        handler=pause,
        query=Empty,
        replies=((JSON, QueueInfo),),
        errors=(BadInput, UnknownQueue),
    ),
    Route(
        method="POST",
        path=_PATH + "/resume",
        verb="resume",
        summary="Hand out deliveries again",
        need=_ADMIN,
        handler=resume,
        query=Empty,
        replies=((JSON, QueueInfo),),
        errors=(BadInput, UnknownQueue),
    ),
    Route(
        method="POST",
        path=_PATH + "/routes",
        verb="route",
        summary="Catch a queue up by a number of log entries",
        need=_ADMIN,
        handler=route,
        query=Empty,
        body=Body(RouteBody, required=False),
        replies=((JSON, RouteReply),),
        errors=(BadInput, UnknownQueue, Conflict),
    ),
    Route(
        method="POST",
        path=_PATH + "/assignments",
        verb="assign",
        summary="Catch a queue up by a range of the log, as an external router found it",
        need=_ADMIN,
        handler=assign,
        query=Empty,
        body=ListBody(AssignBody, "offsets", MAX_ASSIGN),
        replies=((JSON, RouteReply),),
        errors=(BadInput, UnknownQueue, Conflict, OtherStore, TooLarge),
    ),
)
