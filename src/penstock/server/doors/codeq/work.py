"""What workers of codeQ do with tasks they claimed: heartbeat, abandon, nack, submit a result.

A worker owns a task if the current claim is its own. The receipt is looked up for every call (S1).
The result webhook of a task is a message, published in the commit that ends the task (S3).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from penstock.broker import Broker
from penstock.model.delivery import (
    Ack,
    Extend,
    Nack,
    Receipt,
    Reject,
    Release,
    Settlement,
    Snapshot,
)
from penstock.model.limits import MAX_LEASE_MS
from penstock.model.message import Outgoing
from penstock.model.states import State
from penstock.server.doors.codeq.access import Worker
from penstock.server.doors.codeq.callbacks import result_message
from penstock.server.doors.codeq.refusals import CodeqError
from penstock.server.doors.codeq.results import (
    EXHAUSTED,
    ResultBody,
    SubmitBody,
    callback_body,
    check_submitted,
    failure_text,
    new_result,
)
from penstock.server.doors.codeq.tasks import (
    BACKOFF,
    COMPLETED,
    FAILED,
    LEASE_S,
    Found,
    command_of,
    find,
)
from penstock.server.doors.json_bodies import rfc3339
from penstock.server.doors.message_uuid import message_uuid

__all__ = [
    "NackReply",
    "abandon",
    "heartbeat",
    "lease_ms",
    "nack",
    "submit",
]

MAX_NACK_DELAY_S: Final = BACKOFF.max_ms // 1000
_encode: Final = msgspec.json.Encoder().encode


class NackReply(Struct, frozen=True):
    """What became of a task."""

    status: str
    delaySeconds: int  # noqa: N815  (codeQ's name)


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


async def owned(
    broker: Broker, worker: Worker, id: str, *, unknown: int, idle: CodeqError
) -> Owned:
    """The task, if the worker owns it; raises with the status that the route has."""
    found = await find(broker, id)
    if found is None:
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
        error = reason or EXHAUSTED
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
    check_submitted(body)
    task = await owned(broker, worker, id, unknown=404, idle=_not_in_progress())
    task_id = message_uuid(task.found.message.id)
    result = new_result(task_id, body, broker.engine.clock.now())
    settlement: Settlement = (
        Ack(task.receipt, _encode(result))
        if body.status == COMPLETED
        else Reject(task.receipt, failure_text(result))
    )
    await _settle(broker, task, settlement, result)
    return result


async def _settle(
    broker: Broker, task: Owned, settlement: Settlement, result: ResultBody | None = None
) -> None:
    publish: list[Outgoing] = []
    if result is not None:
        publish = await result_message(broker, task.found.message, callback_body(result))
    reply = await broker.settle(task.queue, [settlement], publish=publish)
    if not reply.outcomes[0].ok:
        # The lease ended and another worker has the task, since it was looked up.
        raise _not_owner()


def _not_owner() -> CodeqError:
    return CodeqError(403, "not-owner")


def _not_in_progress() -> CodeqError:
    return CodeqError(409, "not-in-progress")
