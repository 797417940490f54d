"""What a Django program does with tasks; prints what it sees as one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import django_project as project
from django.db import connections, transaction
from django.utils import timezone

from penstock.integrations.django.running import worker_app

if project.BACKPORT:
    from django_tasks import TaskResult, default_task_backend
    from django_tasks.exceptions import (
        InvalidTaskError,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
else:
    from django.tasks import TaskResult, default_task_backend
    from django.tasks.exceptions import InvalidTask as InvalidTaskError
    from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch


#: Names that differ between Django and the backport.
NAMES = {"InvalidTask": "InvalidTaskError"}


@contextmanager
def working() -> Iterator[None]:
    backend: Any = default_task_backend
    app = worker_app(backend, ["default", "slow"], 2)
    thread = threading.Thread(target=lambda: asyncio.run(app.run()))
    thread.start()
    try:
        yield
    finally:
        app.stop()
        thread.join()


def finish(result: TaskResult[Any]) -> TaskResult[Any]:
    while not result.is_finished:
        result.refresh()
    return result


def error_of(function: Any) -> str:
    try:
        function()
    except (InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch, ValueError) as error:
        return NAMES.get(type(error).__name__, type(error).__name__)
    return "no error"


def results() -> dict[str, Any]:
    """One of each outcome."""
    done = project.add.enqueue(2, right=3)
    before = done.status
    urgent = project.slow.enqueue()
    deferred = project.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 1)
    retried = project.attempt.enqueue(3)
    failed = project.unserialisable.enqueue()
    with working():
        for result in (done, urgent, retried, failed):
            finish(result)
    deferred.refresh()
    return {
        "before": before,
        "done": [done.status, done.return_value, done.args, done.kwargs, done.attempts],
        "finished": done.started_at is not None and done.finished_at >= done.started_at,
        "urgent": urgent.status,
        "deferred": deferred.status,
        "retried": [retried.return_value, retried.attempts],
        "errors": [item.exception_class_path for item in retried.errors],
        "failed": [failed.status, failed.errors[-1].exception_class_path],
        "failed_value": error_of(lambda: failed.return_value),
        "unknown": error_of(lambda: default_task_backend.get_result("default.0000")),
        "mismatch": error_of(lambda: project.slow.get_result(done.id)),
        "bad_queue": error_of(lambda: project.add.using(queue_name="no such/queue")),
        "bad_priority": error_of(lambda: project.add.using(priority=101)),
    }


def transactions() -> dict[str, Any]:
    """What is enqueued inside atomic blocks that commit, or do not."""
    database = sys.argv[2] if len(sys.argv) > 2 else "default"
    found: dict[str, TaskResult[Any]] = {}
    try:
        with transaction.atomic(using=database):
            found["rolled back"] = project.add.enqueue(1, 1)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    with transaction.atomic(using=database):
        found["committed"] = project.add.enqueue(2, 2)
        inside = error_of(found["committed"].refresh)
    found["outside"] = project.add.enqueue(3, 3)
    connections.close_all()
    seen = {name: error_of(result.refresh) for name, result in found.items()}
    return seen | {"inside": inside}


if __name__ == "__main__":
    report = {"results": results, "transactions": transactions}[sys.argv[1]]()
    default_task_backend.close()
    print(json.dumps(report))
