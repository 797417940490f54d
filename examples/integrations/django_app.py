"""Django's Tasks on Penstock, as a project in one file, for Django 6 or the backport.

With a server (`make run`) and a worker

    python django_app.py penstock_worker

running, `python django_app.py shell -c "from django_app import add; add.enqueue(2, 3)"` enqueues
a task, and `python django_app.py` enqueues one and prints its result.
"""

import os
import sys
import time

import django
from django.conf import settings
from django.core.management import execute_from_command_line

#: Since version 6 tasks are a part of Django.
BACKPORT = [] if django.VERSION >= (6,) else ["django_tasks"]

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[*BACKPORT, "penstock.integrations.django"],
        TASKS={
            "default": {
                "BACKEND": "penstock.integrations.django.PenstockBackend",
                "QUEUES": ["default"],
                "OPTIONS": {"url": os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")},
            }
        },
        USE_TZ=True,
    )
    django.setup()

if BACKPORT:
    from django_tasks import task
else:
    from django.tasks import task


@task()
def add(left: int, right: int) -> int:
    return left + right


def main() -> None:
    # A task is found by the import path of its function, and this file runs as __main__.
    from django_app import add  # noqa: PLC0415

    result = add.enqueue(2, 3)
    while not result.is_finished:
        time.sleep(0.1)
        result.refresh()
    print("2 + 3 =", result.return_value)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        execute_from_command_line(sys.argv)
    else:
        main()
