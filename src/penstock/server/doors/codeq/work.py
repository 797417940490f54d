"""What workers of codeQ do with tasks: claim, heartbeat, abandon, nack, submit a result.

A worker owns a task if the current claim is its own. The receipt is looked up for every call (S1).
The result webhook of a task is a message, published in the commit that ends the task (S3).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.broker import Broker
from penstock.errors import UnknownDelivery
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Receipt,
    Reject,
    Release,
    Result,
    Settlement,
    Snapshot,
)
from penstock.model.limits import MAX_LEASE_MS
from penstock.model.message import Outgoing
from penstock.model.states import State
from penstock.server.doors.codeq.access import Worker
from penstock.server.doors.codeq.callbacks import result_message
from penstock.server.doors.codeq.refusals import CodeqError
from penstock.server.doors.codeq.tasks import (
    BACKOFF,
    COMPLETED,
    FAILED,
    LEASE_S,
    RESULT_MARK,
    Found,
    Task,
    claimed_task,
    command_of,
    ensure_queue,
    find,
)
from penstock.server.doors.json_bodies import rfc3339
from penstock.server.doors.message_uuid import message_uuid

__all__ = [
    "Artifact",
    "NackReply",
    "ResultBody",
    "SubmitBody",
    "abandon",
    "claim",
    "heartbeat",
    "lease_ms",
    "nack",
    "result_of",
    "submit",
]

MAX_NACK_DELAY_S: Final = BACKOFF.max_ms // 1000
_EXHAUSTED: Final = "MAX_ATTEMPTS"
#: The rest of a failed result is stored with the error, which has 8 KiB.
_MAX_FAILURE_BYTES: Final = 8 * 1024
_encode: Final = msgspec.json.Encoder().encode


class SubmittedArtifact(Struct, frozen=True):
    """A file that belongs to a result."""

    name: str = ""
    url: str | None = None
    contentBase64: str | None = None  # noqa: N815  (codeQ's name)
    contentType: str | None = None  # noqa: N815


class SubmitBody(Struct, frozen=True):
    """How a task ended."""

    status: str = ""
    result: Raw | UnsetType = UNSET
    error: str | None = None
    artifacts: list[SubmittedArtifact] | None = None


class Artifact(Struct, frozen=True):
    """A file that belongs to a result, where it can be read."""

    name: str
    url: str


class ResultBody(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """How a task ended, as the API shows it."""

    task_id: str
    status: str
    result: Raw | UnsetType = UNSET
    error: str = ""
    artifacts: list[Artifact] | UnsetType = UNSET
    completed_at: str


class NackReply(Struct, frozen=True):
    """What became of a task."""

    status: str
    delaySeconds: int  # noqa: N815  (codeQ's name)


class _Rest(Struct, frozen=True, omit_defaults=True):
    """What a failed result has besides its error."""

    result: Raw | UnsetType = UNSET
    artifacts: list[Artifact] | UnsetType = UNSET


class Owned(Struct, frozen=True):
    """A task that a worker owns."""

    found: Found
    queue: str
    receipt: Receipt
    delivery: Snapshot


def lease_ms(seconds: int | None) -> int:
    """The lease that a worker asks for; none, 0 and less are the default."""
    wanted = seconds if seconds is not None and seconds > 0 else LEASE_S
    return min(wanted * 1000, MAX_LEASE_MS)


async def claim(
    broker: Broker,
    worker: Worker,
    queues: list[str],
    *,
    limit: int,
    lease_ms: int,
    wait_ms: int = 0,
) -> list[Task]:
    """Claim tasks of several commands, in their order."""
    for queue in queues:
        await ensure_queue(broker, queue)
    deliveries: list[Delivery] = await broker.claim(
        queues, limit=limit, consumer=worker.consumer, lease_ms=lease_ms, wait_ms=wait_ms
    )
    return [claimed_task(broker.tenant, delivery, worker.id) for delivery in deliveries]


async def owned(
    broker: Broker, worker: Worker, id: str, *, unknown: int, idle: CodeqError
) -> Owned:
    """The task, if the worker owns it; raises with the status that the route has."""
    found = await find(broker, id)
    if found is None or found.delivery is None:
        raise CodeqError(unknown, "not-found")
    worker.check(command_of(found.queue))
    shown = found.delivery
    if shown.state is not State.IN_FLIGHT or shown.receipt is None or shown.queue != found.queue:
        raise idle
    if shown.consumer != worker.consumer:
        raise _not_owner()
    return Owned(found, shown.queue, shown.receipt, shown)


async def heartbeat(broker: Broker, worker: Worker, id: str, seconds: int | None) -> None:
    """Extend the lease of a task."""
    task = await owned(broker, worker, id, unknown=500, idle=_not_owner())
    await _settle(broker, task, Extend(task.receipt, lease_ms(seconds)))


async def abandon(broker: Broker, worker: Worker, id: str) -> None:
    """Give a task back unprocessed; the attempt does not count."""
    idle = CodeqError(500, "not-in-progress")
    task = await owned(broker, worker, id, unknown=500, idle=idle)
    await _settle(broker, task, Release(task.receipt))


async def nack(
    broker: Broker, worker: Worker, id: str, delay_s: int | None, reason: str | None
) -> NackReply:
    """Retry a task later; without attempts left, fail it and report that to its webhook."""
    task = await owned(broker, worker, id, unknown=404, idle=_not_in_progress())
    used = task.delivery.attempts - task.delivery.released
    limit = task.found.message.max_attempts
    if limit is None:
        limit = (await broker.queue(task.queue)).policy.max_attempts
    if used >= limit:
        error = reason or _EXHAUSTED
        now = broker.engine.clock.now()
        body = ResultBody(
            task_id=message_uuid(task.found.message.id),
            status=FAILED,
            error=error,
            completed_at=rfc3339(now),
        )
        await _settle(broker, task, Reject(task.receipt, error), body)
        return NackReply("dlq", 0)
    if delay_s is not None and delay_s > 0:
        seconds = min(delay_s, MAX_NACK_DELAY_S)
    else:
        jitter = broker.options.engine.jitter
        seconds = -(-jitter(BACKOFF.ceiling_ms(used)) // 1000)
    await _settle(broker, task, Nack(task.receipt, reason or None, seconds * 1000))
    return NackReply("requeued", seconds)


async def submit(broker: Broker, worker: Worker, id: str, body: SubmitBody) -> ResultBody:
    """End a task with its result."""
    _check(body)
    task = await owned(broker, worker, id, unknown=404, idle=_not_in_progress())
    artifacts = [_artifact(item) for item in body.artifacts or ()]
    result = ResultBody(
        task_id=message_uuid(task.found.message.id),
        status=body.status,
        result=_given(body.result),
        error=(body.error or "") if body.status == FAILED else "",
        artifacts=artifacts or UNSET,
        completed_at=rfc3339(broker.engine.clock.now()),
    )
    if body.status == COMPLETED:
        settlement: Settlement = Ack(task.receipt, _encode(result))
    else:
        rest = _encode(_Rest(result.result, result.artifacts)).decode()
        text = (body.error or "") + RESULT_MARK + rest
        if len(text.encode(errors="replace")) > _MAX_FAILURE_BYTES:
            raise CodeqError(400, "error, result and artifacts of a failed task exceed 8 KiB")
        settlement = Reject(task.receipt, text)
    await _settle(broker, task, settlement, result)
    return result


async def result_of(broker: Broker, found: Found) -> ResultBody | None:
    """How a task ended; None if it has not ended, or its result is gone."""
    shown = found.delivery
    if shown is None:
        return None
    task_id = message_uuid(found.message.id)
    if shown.state is State.DONE and shown.queue == found.queue:
        try:
            ended = await broker.result(found.queue, found.message.id)
        except UnknownDelivery:
            return None
        return None if ended is None else _completed(task_id, ended)
    if shown.state is State.FAILED or shown.state is State.EXPIRED:
        return _failed(task_id, shown)
    return None


def _completed(id: str, ended: Result) -> ResultBody:
    raw = ended.result or b""
    try:
        known = msgspec.json.decode(raw, type=ResultBody)
        if known.task_id == id:
            return known
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass
    # A native consumer acked it: its result may be anything.
    try:
        result: Raw | UnsetType = Raw(msgspec.json.decode(raw, type=Raw))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        result = UNSET
    return ResultBody(task_id=id, status=COMPLETED, result=result, completed_at=rfc3339(ended.at))


def _failed(id: str, shown: Snapshot) -> ResultBody:
    error, _, rest = (shown.error or "").partition(RESULT_MARK)
    more = _Rest()
    if rest:
        try:
            more = msgspec.json.decode(rest, type=_Rest)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            more = _Rest()
    if not error:
        error = "EXPIRED" if shown.state is State.EXPIRED else _EXHAUSTED
    return ResultBody(
        task_id=id,
        status=FAILED,
        result=more.result,
        error=error,
        artifacts=more.artifacts,
        completed_at=rfc3339(shown.at or shown.message.published_at),
    )


async def _settle(
    broker: Broker, task: Owned, settlement: Settlement, result: ResultBody | None = None
) -> None:
    publish: list[Outgoing] = []
    if result is not None:
        publish = await result_message(broker, task.found.message, _callback(result))
    reply = await broker.settle(task.queue, [settlement], publish=publish)
    if not reply.outcomes[0].ok:
        # The lease ended and another worker has the task, since it was looked up.
        raise _not_owner()


def _callback(result: ResultBody) -> dict[str, Any]:
    """The body of a result webhook, without the command: every field is there."""
    return {
        "taskId": result.task_id,
        "status": result.status,
        "result": None if isinstance(result.result, UnsetType) else result.result,
        "error": result.error,
        "artifacts": None if isinstance(result.artifacts, UnsetType) else result.artifacts,
        "completedAt": result.completed_at,
    }


def _check(body: SubmitBody) -> None:
    if body.status not in (COMPLETED, FAILED):
        raise CodeqError(400, "status must be COMPLETED or FAILED", field="status")
    result = _given(body.result)
    if not isinstance(result, UnsetType) and not bytes(result).startswith(b"{"):
        raise CodeqError(400, "result must be an object", field="result")
    if body.status == COMPLETED and isinstance(result, UnsetType):
        raise CodeqError(400, "result is required for COMPLETED", field="result")
    if body.status == FAILED and not body.error:
        raise CodeqError(400, "error is required for FAILED", field="error")


def _given(result: Raw | UnsetType) -> Raw | UnsetType:
    if isinstance(result, UnsetType) or bytes(result) == b"null":
        return UNSET
    return result


def _artifact(item: SubmittedArtifact) -> Artifact:
    if not item.name:
        raise CodeqError(400, "an artifact needs a name", field="artifacts")
    if item.contentBase64 is not None:
        kind = item.contentType or "application/octet-stream"
        return Artifact(item.name, f"data:{kind};base64,{item.contentBase64}")
    return Artifact(item.name, item.url or "")


def _not_owner() -> CodeqError:
    return CodeqError(403, "not-owner")


def _not_in_progress() -> CodeqError:
    return CodeqError(409, "not-in-progress")
