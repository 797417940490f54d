"""``manage.py penstock_worker``: run tasks until SIGTERM or SIGINT."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from penstock.errors import PenstockError
from penstock.integrations.django.backend import PenstockBackend
from penstock.integrations.django.framework import task_backends
from penstock.integrations.django.running import worker_app

DEFAULT_CONCURRENCY: Final = 4


class Command(BaseCommand):
    """The command."""

    help = "Run the tasks of Penstock's queues. The first SIGTERM or Ctrl-C lets running tasks end."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--backend", default="default", help="an alias of the setting TASKS")
        parser.add_argument(
            "--queue",
            action="append",
            help="a queue; may be given several times. By default all QUEUES of the backend",
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=DEFAULT_CONCURRENCY,
            help="tasks of one queue that run at the same time, in threads",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal."""
        alias = options["backend"]
        backend = task_backends[alias]
        if not isinstance(backend, PenstockBackend):
            raise CommandError(f"The backend {alias!r} is not a PenstockBackend.")
        queues = sorted(options["queue"] or backend.queues)
        if not queues:
            raise CommandError("The backend names no QUEUES: use --queue.")
        self.stdout.write(f"Running tasks of {', '.join(queues)}.")
        try:
            worker_app(backend, queues, options["concurrency"]).main()
        except PenstockError as error:
            raise CommandError(str(error)) from error
