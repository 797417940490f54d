"""A Django project with tasks, for tests: settings come from the environment."""

from __future__ import annotations

import json
import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line

#: Since version 6 tasks are a part of Django.
BACKPORT = [] if django.VERSION >= (6,) else ["django_tasks"]

if not settings.configured:
    settings.configure(
        DATABASES=json.loads(os.environ["TEST_DATABASES"]),
        INSTALLED_APPS=[*BACKPORT, "penstock.integrations.django"],
        TASKS={
            "default": {
                "BACKEND": "penstock.integrations.django.PenstockBackend",
                "QUEUES": ["default", "slow"],
                "OPTIONS": json.loads(os.environ["TEST_OPTIONS"]),
            }
        },
        USE_TZ=True,
    )
    django.setup()

if BACKPORT:
    from django_tasks import TaskContext, task
else:
    from django.tasks import TaskContext, task


@task()
def add(left: int, right: int) -> int:
    return left + right


@task(takes_context=True)
async def attempt(context: TaskContext, fail_until: int) -> int:
    if context.attempt < fail_until:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task()
def unserialisable() -> object:
    return object()


@task(queue_name="slow", priority=50)
def slow() -> None: ...


if __name__ == "__main__":
    execute_from_command_line(sys.argv)
