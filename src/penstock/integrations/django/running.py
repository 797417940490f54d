"""Running tasks: an app whose handlers call Django's task functions."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.db import close_old_connections
from django.utils.module_loading import import_string

from penstock.integrations.django.backend import RESULT_HEADER, TASK_HEADER, PenstockBackend
from penstock.integrations.django.framework import (
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    task_finished,
    task_started,
)
from penstock.integrations.django.results import read_call, to_error, to_text
from penstock.model.settling_exceptions import Reject, Retry
from penstock.worker import App, Context

__all__ = ["worker_app"]


def worker_app(backend: PenstockBackend, queues: Sequence[str], concurrency: int) -> App:
    """An app that runs the tasks of the queues; missing queues are created."""
    app = App(
        backend.connection.url,
        credential=backend.connection.credential,
        **backend.connection.tls,
    )

    def run(payload: bytes, context: Context) -> bytes:
        close_old_connections()
        try:
            return _run(backend, payload, context)
        finally:
            close_old_connections()

    for queue in queues:
        register = app.worker(
            queue,
            concurrency=concurrency,
            filter=f"topic = '{queue}'",
            **backend.connection.policy,
        )
        register(run)
    return app


def _run(backend: PenstockBackend, payload: bytes, context: Context) -> bytes:
    task = _find(str(context.headers.get(TASK_HEADER, "")))
    try:
        call = read_call(payload)
    except msgspec.MsgspecError as error:
        raise Reject(f"The arguments cannot be read: {error}") from error
    result = _begun(backend, task, call.args, call.kwargs, context)
    task_started.send(type(backend), task_result=result)
    arguments = [TaskContext(task_result=result)] if task.takes_context else []
    try:
        value = msgspec.json.encode(task.call(*arguments, *call.args, **call.kwargs))
    except Exception as error:
        text = to_text(error, traceback.format_exc())
        result.errors.append(to_error(text))
        _finish(backend, result, TaskResultStatus.FAILED)
        raise Retry(text) from error
    _finish(backend, result, TaskResultStatus.SUCCESSFUL)
    return value


def _find(path: str) -> Task[Any, Any]:
    try:
        found = import_string(path)
    except ImportError as error:
        raise Reject(f"The task {path!r} cannot be imported: {error}") from error
    if not isinstance(found, Task):
        raise Reject(f"{path!r} is not a task.")
    return found


def _begun(
    backend: PenstockBackend,
    task: Task[Any, Any],
    args: list[Any],
    kwargs: dict[str, Any],
    context: Context,
) -> TaskResult[Any]:
    began = datetime.fromtimestamp(context.delivery.claimed_at / 1000, tz=UTC)
    enqueued = datetime.fromtimestamp(context.message.published_at / 1000, tz=UTC)
    return TaskResult(
        task=task,
        id=str(context.headers.get(RESULT_HEADER, context.message.id)),
        status=TaskResultStatus.RUNNING,
        enqueued_at=enqueued,
        started_at=began,
        last_attempted_at=began,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=backend.alias,
        errors=[],
        worker_ids=[""] * context.attempts,
    )


def _finish(backend: PenstockBackend, result: TaskResult[Any], status: TaskResultStatus) -> None:
    object.__setattr__(result, "status", status)
    task_finished.send(type(backend), task_result=result)
