"""Results of codeQ's tasks: what workers submit, how it is stored, and what is shown of it.

A completed task has its result in the ack. A failed one has the error in the reject, followed by a
mark and the rest of the result.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.broker import Broker
from penstock.errors import UnknownDelivery
from penstock.model.delivery import Result, Snapshot
from penstock.model.states import State
from penstock.server.doors.codeq.refusals import CodeqError
from penstock.server.doors.codeq.tasks import COMPLETED, FAILED, RESULT_MARK, Found
from penstock.server.doors.json_bodies import rfc3339
from penstock.server.doors.message_uuid import message_uuid

__all__ = [
    "EXHAUSTED",
    "ResultBody",
    "SubmitBody",
    "callback_body",
    "check_submitted",
    "failure_text",
    "new_result",
    "result_of",
]

#: The error of a task that failed without one.
EXHAUSTED: Final = "MAX_ATTEMPTS"
#: The rest of a failed result is stored with the error, which has 8 KiB.
_MAX_FAILURE_BYTES: Final = 8 * 1024
_MAX_ARTIFACTS: Final = 100
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


class _Rest(Struct, frozen=True, omit_defaults=True):
    """What a failed result has besides its error."""

    result: Raw | UnsetType = UNSET
    artifacts: list[Artifact] | UnsetType = UNSET


def new_result(task_id: str, body: SubmitBody, now: int) -> ResultBody:
    """The result that a worker submits now."""
    artifacts = [_artifact(item) for item in body.artifacts or ()]
    return ResultBody(
        task_id=task_id,
        status=body.status,
        result=_given(body.result),
        error=(body.error or "") if body.status == FAILED else "",
        artifacts=artifacts or UNSET,
        completed_at=rfc3339(now),
    )


def failure_text(result: ResultBody) -> str:
    """The error of the reject that ends a task with a failed result."""
    rest = _encode(_Rest(result.result, result.artifacts)).decode()
    text = result.error + RESULT_MARK + rest
    if len(text.encode(errors="replace")) > _MAX_FAILURE_BYTES:
        raise CodeqError(400, "error, result and artifacts of a failed task exceed 8 KiB")
    return text


async def result_of(broker: Broker, found: Found) -> ResultBody | None:
    """How a task ended; None if it has not ended, or its result is gone."""
    shown = found.delivery
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
        error = "EXPIRED" if shown.state is State.EXPIRED else EXHAUSTED
    return ResultBody(
        task_id=id,
        status=FAILED,
        result=more.result,
        error=error,
        artifacts=more.artifacts,
        completed_at=rfc3339(shown.at or shown.message.published_at),
    )


def callback_body(result: ResultBody) -> dict[str, Any]:
    """The body of a result webhook, without the command: every field is there."""
    return {
        "taskId": result.task_id,
        "status": result.status,
        "result": None if isinstance(result.result, UnsetType) else result.result,
        "error": result.error,
        "artifacts": None if isinstance(result.artifacts, UnsetType) else result.artifacts,
        "completedAt": result.completed_at,
    }


def check_submitted(body: SubmitBody) -> None:
    """Refuse a result that lacks what its status needs."""
    if body.status not in (COMPLETED, FAILED):
        raise CodeqError(400, "status must be COMPLETED or FAILED", field="status")
    if len(body.artifacts or ()) > _MAX_ARTIFACTS:
        raise CodeqError(400, f"at most {_MAX_ARTIFACTS} artifacts", field="artifacts")
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
