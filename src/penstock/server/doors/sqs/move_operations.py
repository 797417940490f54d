"""StartMessageMoveTask, CancelMessageMoveTask and ListMessageMoveTasks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.errors import UnknownQueue
from penstock.model.limits import is_dead_letter
from penstock.server.doors.sqs import requests
from penstock.server.doors.sqs.attributes import SqsQueue
from penstock.server.doors.sqs.failures import SqsError
from penstock.server.doors.sqs.moving import MoveTask, Status
from penstock.server.doors.sqs.names import to_sqs
from penstock.server.doors.sqs.request_context import SqsCall
from penstock.server.doors.sqs.requests import required

__all__ = ["cancel_message_move_task", "list_message_move_tasks", "start_message_move_task"]

Reply = dict[str, Any]

_MAX_RATE: Final = 500
_MAX_RESULTS: Final = 10


async def start_message_move_task(sqs: SqsCall, request: requests.StartMessageMoveTask) -> Reply:
    """Move the messages of a dead-letter queue to their own queues, or to another one."""
    source = await _existing(sqs, required(request.source_arn, "SourceArn"), "SourceArn", "admin")
    if is_dead_letter(source.info.name):
        raise SqsError(
            "UnsupportedOperation",
            "This dead-letter queue is part of its queue: replay it with Penstock.",
        )
    rate = request.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= _MAX_RATE:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {rate} for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: Must be"
            f" between 1 and {_MAX_RATE}.",
        )
    sources = await _sources(sqs, source)
    destination = await _destination(sqs, request.destination_arn, source, sources)
    for task in await sqs.shared.moves.list(sqs.tenant, source.info.name):
        if task.status == Status.RUNNING:
            raise SqsError(
                "UnsupportedOperation",
                "There is already a task running. Only one active task is allowed for a source"
                " queue arn at a given time.",
            )
    stats = await sqs.broker.stats(source.info.name)
    now = sqs.call.service.now()
    task = MoveTask(
        id=sqs.shared.new_id(),
        source=source.info.name,
        destination=destination,
        homes=tuple(sources),
        rate=rate,
        started_at=now,
        to_move=stats.available,
    )
    await sqs.shared.moves.start(sqs.tenant, sqs.broker, task)
    return {"TaskHandle": _handle(sqs, task)}


async def _sources(sqs: SqsCall, queue: SqsQueue) -> list[str]:
    """The queues that dead-letter into a queue."""
    name = queue.info.name
    infos = await sqs.broker.queues()
    found = [info.name for info in infos if info.policy.dead_letter_topic == name]
    if not found:
        raise SqsError(
            "InvalidParameterValue",
            "Source queue must be configured as a Dead Letter Queue.",
        )
    return found


async def _destination(
    sqs: SqsCall, arn: str | None, source: SqsQueue, sources: list[str]
) -> str | None:
    """The queue to move to; None if every message goes back to its own."""
    if arn is None:
        for name in sources:
            await _target(sqs, await sqs.reread(name))
        return None
    queue = await _existing(sqs, arn, "DestinationArn", "publish")
    if queue.info.name == source.info.name:
        raise SqsError("InvalidParameterValue", "The destination is the source.")
    return await _target(sqs, queue)


async def _target(sqs: SqsCall, queue: SqsQueue) -> str:
    sqs.check(queue.info.name, "publish")
    if not queue.takes_topic:
        raise SqsError(
            "UnsupportedOperation",
            f"The queue {queue.name} takes the messages of its own filter: give another"
            " DestinationArn.",
        )
    return queue.info.name


async def _existing(sqs: SqsCall, arn: str, parameter: str, action: str) -> SqsQueue:
    try:
        return await sqs.queue_of_arn(arn, parameter, action)
    except UnknownQueue as error:
        raise _not_found(f"The resource that you specified for the {parameter} parameter") from (
            error
        )


def _not_found(what: str) -> SqsError:
    return SqsError("ResourceNotFoundException", f"{what} doesn't exist.")


async def cancel_message_move_task(sqs: SqsCall, request: requests.CancelMessageMoveTask) -> Reply:
    """Stop a task; what it has moved stays moved."""
    task_id, arn = _read_handle(required(request.task_handle, "TaskHandle"))
    source = await _existing(sqs, arn, "TaskHandle", "admin")
    known = {task.id for task in await sqs.shared.moves.list(sqs.tenant, source.info.name)}
    task = await sqs.shared.moves.cancel(sqs.tenant, task_id) if task_id in known else None
    if task is None:
        raise _not_found("Task with the given handle that is running here")
    return {"ApproximateNumberOfMessagesMoved": task.moved}


async def list_message_move_tasks(sqs: SqsCall, request: requests.ListMessageMoveTasks) -> Reply:
    """The newest tasks of a dead-letter queue."""
    arn = required(request.source_arn, "SourceArn")
    source = await _existing(sqs, arn, "SourceArn", "read")
    count = 1 if request.max_results is None else request.max_results
    if not 1 <= count <= _MAX_RESULTS:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {count} for parameter MaxResults is invalid. Reason: Must be between 1 and"
            f" {_MAX_RESULTS}.",
        )
    tasks = await sqs.shared.moves.list(sqs.tenant, source.info.name)
    return {"Results": [_shown(sqs, task) for task in tasks[:count]]}


def _shown(sqs: SqsCall, task: MoveTask) -> Reply:
    shown: Reply = {
        "Status": task.status,
        "SourceArn": sqs.arn_of(to_sqs(task.source)),
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_at,
    }
    if task.status == Status.RUNNING:
        shown["TaskHandle"] = _handle(sqs, task)
    if task.destination is not None:
        shown["DestinationArn"] = sqs.arn_of(to_sqs(task.destination))
    if task.rate is not None:
        shown["MaxNumberOfMessagesPerSecond"] = task.rate
    if task.failure is not None:
        shown["FailureReason"] = task.failure
    return shown


def _handle(sqs: SqsCall, task: MoveTask) -> str:
    content = {"taskId": task.id, "sourceArn": sqs.arn_of(to_sqs(task.source))}
    return base64.b64encode(msgspec.json.encode(content)).decode()


def _read_handle(handle: str) -> tuple[str, str]:
    decode: Callable[..., dict[str, str]] = msgspec.json.decode
    try:
        content = decode(base64.b64decode(handle, validate=True), type=dict[str, str])
        return content["taskId"], content["sourceArn"]
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise SqsError(
            "InvalidParameterValue", "Value for parameter TaskHandle is invalid."
        ) from error
