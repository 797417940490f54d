"""Django's classes for tasks: its own since version 6, before that those of ``django-tasks``."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import MissingExtra
from penstock.extras import importing

with importing("django", "django"):
    try:
        from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskError
        from django.tasks.exceptions import InvalidTask as InvalidTaskError
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
    except ModuleNotFoundError as error:
        if error.name != "django.tasks":
            raise
        if find_spec("django_tasks") is None:
            # On Python 3.12 and newer the extra brings Django 6 or nothing.
            raise MissingExtra(
                "This Django has no tasks: pip install django-tasks, or upgrade to Django 6."
            ) from error
        from django_tasks import task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started

__all__ = [
    "BaseTaskBackend",
    "InvalidTaskError",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
