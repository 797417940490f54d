"""What became of a task, from its message, its delivery and their history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from msgspec import Struct

from penstock.errors import UnknownMessage
from penstock.integrations.django.framework import (
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from penstock.model.delivery import Event, MessageDeliveries, Snapshot
from penstock.model.states import State, Transition
from penstock.sync import SyncVerbs

__all__ = ["Call", "read_call", "read_result", "to_error", "to_text"]

_STATUS: Final = {
    State.DELAYED: TaskResultStatus.READY,
    State.AVAILABLE: TaskResultStatus.READY,
    State.IN_FLIGHT: TaskResultStatus.RUNNING,
    State.DONE: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.EXPIRED: TaskResultStatus.FAILED,
}


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a task's message."""

    args: list[Any]
    kwargs: dict[str, Any]


def read_call(payload: bytes) -> Call:
    """The arguments of a call."""
    return msgspec.json.decode(payload, type=Call)


def read_result(verbs: SyncVerbs, alias: str, result_id: str) -> TaskResult[Any]:
    """The result with this id; ``TaskResultDoesNotExist`` if the store does not have it."""
    queue = result_id.rpartition(".")[0]
    if not queue:
        raise TaskResultDoesNotExist(result_id)
    found = verbs.find(queue, id=result_id).messages
    if not found:
        raise TaskResultDoesNotExist(result_id)
    try:
        about = verbs.message(found[0].id)
        history = [event for event in verbs.history(found[0].id) if event.queue == queue]
    except UnknownMessage as error:
        raise TaskResultDoesNotExist(result_id) from error
    delivery = next((item for item in about.deliveries if item.queue == queue), None)
    if delivery is None:
        raise TaskResultDoesNotExist(result_id)
    value = None
    if delivery.state is State.DONE:
        ended = verbs.result(queue, found[0].id)
        value = ended.result if ended is not None else None
    return _to_result(alias, result_id, about, delivery, history, value)


def _to_result(
    alias: str,
    result_id: str,
    about: MessageDeliveries,
    delivery: Snapshot,
    history: Sequence[Event],
    value: bytes | None,
) -> TaskResult[Any]:
    message = about.message
    call = read_call(about.payload)
    claims = [event for event in history if event.transition is Transition.CLAIM]
    status = _STATUS[delivery.state]
    result: TaskResult[Any] = TaskResult(
        task=_to_task(str(message.headers["task"]), alias, delivery.queue),
        id=result_id,
        status=status,
        enqueued_at=_time(message.published_at),
        started_at=_time(claims[0].at) if claims else None,
        last_attempted_at=_time(claims[-1].at) if claims else None,
        finished_at=_time(delivery.at) if delivery.state in _ENDED else None,
        args=call.args,
        kwargs=call.kwargs,
        backend=alias,
        errors=[to_error(event.error) for event in history if event.error is not None],
        worker_ids=[event.consumer or "" for event in claims],
    )
    if value is not None:
        # A frozen dataclass; Django's own backends set it in the same way.
        object.__setattr__(result, "_return_value", msgspec.json.decode(value))
    return result


_ENDED: Final = frozenset({State.DONE, State.FAILED, State.EXPIRED})


def _to_task(path: str, alias: str, queue: str) -> Task[Any, Any]:
    try:
        found = import_string(path)
    except ImportError as error:
        raise TaskResultDoesNotExist(f"The task {path} cannot be imported: {error}.") from error
    if not isinstance(found, Task):
        raise ImproperlyConfigured(f"{path} is not a task.")
    return found.using(backend=alias, queue_name=queue)


def to_text(error: BaseException, trace: str) -> str:
    """An exception as the error of a delivery: its import path, then its traceback."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}\n{trace}"


def to_error(text: str) -> TaskError:
    """The error of a delivery as Django shows it; other errors than exceptions have no class."""
    path, _, trace = text.partition("\n")
    if not trace or " " in path:
        return TaskError(exception_class_path="builtins.RuntimeError", traceback=text)
    return TaskError(exception_class_path=path, traceback=trace)


def _time(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at / 1000, tz=UTC)
