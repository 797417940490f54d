"""The routes of administrators: topic policies, counts of queues, cleanup."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.api import BULK_LIMIT
from penstock.broker import Broker
from penstock.errors import UnknownQueue
from penstock.model.names import escape
from penstock.model.queue import QueueInfo
from penstock.model.states import State
from penstock.server.call import Call
from penstock.server.doors.codeq import policies
from penstock.server.doors.codeq.access import check_admin
from penstock.server.doors.codeq.http_tasks import PREFIX
from penstock.server.doors.codeq.policies import PolicyBody
from penstock.server.doors.codeq.refusals import CodeqError
from penstock.server.doors.codeq.tasks import COMMAND_LABEL, RETENTION_S, command_of
from penstock.server.doors.json_bodies import (
    SMALL_BYTES,
    decode_json,
    json_reply,
    query_of,
    read_json,
    rfc3339,
    to_ms,
)
from penstock.server.doors.path_door import DoorRoute, checked
from penstock.server.replies import Plain

__all__ = ["ROUTES"]

_POLICY_BYTES: Final = 1024 * 1024
_DEFAULT_CLEANUP: Final = 1000
_FINISHED: Final = (State.DONE, State.EXPIRED, State.FAILED)


class QueueCounts(Struct, frozen=True):
    """The tasks of a command, by where they are."""

    command: str
    ready: int
    delayed: int
    inProgress: int  # noqa: N815  (codeQ's names)
    dlq: int


class CleanupBody(Struct, frozen=True):
    """What to delete, and how much of it."""

    limit: int | None = None
    before: str | None = None


class CleanupReply(Struct, frozen=True):
    """How many tasks were deleted."""

    deleted: int
    before: str
    limit: int


async def put_topic(call: Call) -> Plain:
    """Store and apply a policy."""
    body = await read_json(call, PolicyBody, _POLICY_BYTES)
    topic, is_new = await policies.put_topic(call.broker, call.name, body)
    return json_reply(topic, 201 if is_new else 200)


async def get_topic(call: Call) -> Plain:
    """A policy."""
    return json_reply(await policies.get_topic(call.broker, call.name))


async def delete_topic(call: Call) -> Plain:
    """Delete a policy and its queue; the caller must say that it means it."""
    if query_of(call).get("deletionPolicy") != "Delete":
        raise CodeqError(400, "deletionPolicy=Delete is required", field="deletionPolicy")
    await policies.delete_topic(call.broker, call.name)
    return Plain(204)


async def list_queues(call: Call) -> Plain:
    """The tasks of every command by queue type."""
    found: dict[str, int] = {}
    tenant = call.credential.tenant
    for info in await _command_queues(call.broker):
        counts = await _counts(call.broker, command_of(info.name))
        for kind, count in (
            ("pending", counts.ready),
            ("delayed", counts.delayed),
            ("inprog", counts.inProgress),
            ("dlq", counts.dlq),
        ):
            found[f"{counts.command}/{tenant}/{kind}"] = count
    return json_reply(found)


async def get_queue(call: Call) -> Plain:
    """The tasks of one command."""
    return json_reply(await _counts(call.broker, call.name))


async def cleanup(call: Call) -> Plain:
    """Delete finished tasks that were created a day before a time."""
    raw = await call.read_body(SMALL_BYTES)
    body = decode_json(raw, CleanupBody) if raw else CleanupBody()
    limit = body.limit if body.limit is not None and body.limit > 0 else _DEFAULT_CLEANUP
    before_ms = to_ms(body.before, "before") if body.before else call.service.now()
    deleting = _clean(call.broker, min(limit, BULK_LIMIT), before_ms - RETENTION_S * 1000)
    deleted = await call.scan(deleting)
    return json_reply(CleanupReply(deleted, rfc3339(before_ms), limit))


async def _clean(broker: Broker, limit: int, created_before: int) -> int:
    deleted = 0
    for info in await _command_queues(broker):
        for state in _FINISHED:
            if deleted < limit:
                reply = await broker.purge(
                    info.name,
                    state,
                    where=f"published_at < {created_before}",
                    limit=limit - deleted,
                )
                deleted += reply.count
    return deleted


async def _counts(broker: Broker, command: str) -> QueueCounts:
    try:
        stats = await broker.stats(escape(command, "command"))
    except UnknownQueue:
        return QueueCounts(command, 0, 0, 0, 0)
    return QueueCounts(command, stats.available, stats.delayed, stats.in_flight, stats.failed)


async def _command_queues(broker: Broker) -> list[QueueInfo]:
    return [info for info in await broker.queues() if COMMAND_LABEL in info.policy.labels]


_TOPIC: Final = PREFIX + "/admin/topics/{name}"
ROUTES: Final = tuple(
    DoorRoute(method, path, verb, checked(check_admin, handler))
    for method, path, verb, handler in (
        ("PUT", _TOPIC, "put_topic", put_topic),
        ("GET", _TOPIC, "get_topic", get_topic),
        ("DELETE", _TOPIC, "delete_topic", delete_topic),
        ("GET", PREFIX + "/admin/queues", "list_queues", list_queues),
        ("GET", PREFIX + "/admin/queues/{command}", "get_queue", get_queue),
        ("POST", PREFIX + "/admin/tasks/cleanup", "cleanup", cleanup),
    )
)
