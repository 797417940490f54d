"""Runs a job from a command: its context, progress display and shutdown.

SIGINT and SIGTERM ask the job to end at its next safe point; a second signal interrupts it. The
summary goes to stdout, progress to stderr: a bar on a terminal, occasional lines elsewhere. With
``log_format = json`` the log of the driver is JSON too, one object per line.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import printing
from penstock.cli.exits import Exit
from penstock.cli.options import server_options, stacked
from penstock.cli.progress import Meter, meter
from penstock.cli.session import settings, tls_files
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.pipeline.context import JobOptions, Summary

__all__ = [
    "JobWatcher",
    "asked_to_end",
    "job_options",
    "prepared",
    "repeating_job_options",
    "run",
    "shown",
    "to_pairs",
]

#: Seconds between two lines of progress without a terminal.
_LINE_EVERY_S: Final = 5.0
#: Length of a run id, which is part of file names.
_RUN_DIGITS: Final = 12


def to_pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """A mapping from options of the form of their metavar, KEY=VALUE; used as a callback."""
    del ctx
    pairs: dict[str, str] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise BadInput(f"{item!r} is not {param.metavar}.", field=param.opts[0].lstrip("-"))
        pairs[key] = value
    return pairs


#: The options that every job has.
job_options: Final = stacked(
    server_options,
    click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*] (the default), spark://host:7077, yarn, k8s://…",
    ),
    click.option(
        "--lake",
        metavar="PATH",
        help="The lake: a folder, s3://bucket/path, or another URI for Spark.",
    ),
    click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        callback=to_pairs,
        help="A Spark setting; may be repeated.",
    ),
)
#: Those of a job that can be repeated.
repeating_job_options: Final = stacked(
    job_options,
    click.option(
        "--once/--continuous",
        default=True,
        help="Run one pass, or repeat passes until stopped.",
    ),
    click.option(
        "--interval",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Interval between passes of a continuous job.",
    ),
)


def run(
    name: str,
    job: Callable[..., Summary],
    *,
    master: str | None,
    lake: str | None,
    conf: dict[str, str],
    once: bool = True,
    interval: float = 10.0,
    **parameters: Any,
) -> None:
    """Run the job with its parameters and print its summary; violations set the exit code."""
    options = prepared(master=master, lake=lake, conf=conf, once=once, interval=interval)
    # Import pyspark and pyarrow only when a job runs.
    from penstock.client.options import random_prefix  # noqa: PLC0415
    from penstock.pipeline.context import JobContext  # noqa: PLC0415
    from penstock.pipeline.jobs.job import run_job  # noqa: PLC0415

    stopping = threading.Event()
    with meter(name) as bar, asked_to_end(stopping):
        context = JobContext(
            options,
            run=random_prefix()[:_RUN_DIGITS],
            job=name,
            watcher=JobWatcher(bar),
            stopping=stopping,
        )
        try:
            summary = run_job(partial(job, **parameters), context)
        finally:
            context.close()
    if not printing.as_json({"job": name, "run": context.run, **summary}):
        printing.fields([("job", name), ("run", context.run), *shown(summary)])
    if summary.get("violations"):
        raise click.exceptions.Exit(Exit.VIOLATIONS)


def prepared(
    *, master: str | None, lake: str | None, conf: dict[str, str], once: bool, interval: float
) -> JobOptions:
    """The options of a job, after checking that there are a Java and a server that answers."""
    loaded = settings()
    found, tls = loaded.settings, tls_files(loaded)
    # Import pyspark and pyarrow only when a job runs.
    from penstock.pipeline.context import JobOptions  # noqa: PLC0415
    from penstock.pipeline.remote import Server, check_reachable  # noqa: PLC0415
    from penstock.pipeline.session import check_java  # noqa: PLC0415
    from penstock.telemetry import configure_logging  # noqa: PLC0415

    if found.log_format == "json":
        configure_logging("json", found.log_level)
        # Spark's bridge to Java logs each of its connections.
        logging.getLogger("py4j").setLevel(logging.WARNING)
    check_java()
    options = JobOptions(
        server=Server(found.url, found.credential, tls.ca, tls.cert, tls.cert_key),
        lake=lake,
        master=master,
        settings=conf,
        continuous=not once,
        interval_s=interval,
    )
    # Fail early if the server is unreachable; later the job waits for a server to restart.
    check_reachable(options.server)
    return options


def shown(summary: Summary) -> list[tuple[str, str]]:
    """The fields of a summary, as they are printed."""
    return [
        (name, f"{value:,}" if isinstance(value, int) else str(value))
        for name, value in summary.items()
    ]


class JobWatcher:
    """A bar on a terminal; elsewhere a line for each new activity, and every few seconds."""

    def __init__(self, bar: Meter) -> None:
        self._bar = bar
        self._what = ""
        self._at = 0.0

    def reach(self, what: str, done: int, total: int | None = None) -> None:
        """Move the bar, or write a line if it is due."""
        self._bar(description=what, completed=done, total=total)
        now = time.monotonic()
        if sys.stderr.isatty() or (what == self._what and now - self._at < _LINE_EVERY_S):
            return
        self._what, self._at = what, now
        printing.note(f"{what} {done:,}" + ("" if total is None else f" of {total:,}"))

    def note(self, text: str) -> None:
        """Write a line."""
        printing.note(text)


@contextmanager
def asked_to_end(stopping: threading.Event) -> Iterator[None]:
    """Let the first signal set ``stopping``, and the second raise ``KeyboardInterrupt``."""

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
