"""Runs a job from a command: its context, progress display and shutdown.

SIGINT and SIGTERM ask the job to end at its next safe point; a second signal interrupts it. The
summary goes to stdout, progress to stderr: a bar on a terminal, occasional lines elsewhere.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli import printing
from penstock.cli.options import choices, target_options
from penstock.cli.progress import Meter, meter
from penstock.cli.target import settings
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.pipeline.context import Context, Summary

__all__ = ["job_options", "run"]

F = TypeVar("F", bound=Callable[..., Any])

#: Seconds between two lines of progress without a terminal.
_LINE_EVERY_S: Final = 5.0
#: How long to retry a server that does not answer before a job begins.
_SOON_MS: Final = 2_000
#: Length of a run id, which is part of file names.
_RUN_DIGITS: Final = 12
_OPTIONS: Final = (
    click.option("--ca", metavar="FILE", help="CA certificates for an https server."),
    click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*] (the default), spark://host:7077, yarn, k8s://…",
    ),
    click.option("--lake", metavar="PATH", help="The lake: a folder, or a URI for Spark."),
    click.option(
        "--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."
    ),
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


def job_options(function: F) -> F:
    """Add the options that every job has."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return target_options(function)


def run(
    name: str,
    job: Callable[[Context], Summary],
    *,
    ca: str | None,
    master: str | None,
    lake: str | None,
    conf: tuple[str, ...],
    once: bool,
    interval: float,
) -> Summary:
    """Run the job and print its summary."""
    if choices().store is not None:
        raise BadInput("Jobs talk to a server: use --url.", field="store")
    found = settings().settings
    # Import pyspark and pyarrow only when a job runs.
    from penstock.client.options import ClientOptions, random_prefix  # noqa: PLC0415
    from penstock.pipeline.context import Context, JobOptions  # noqa: PLC0415
    from penstock.pipeline.jobs.job import run_job  # noqa: PLC0415
    from penstock.pipeline.remote import Server  # noqa: PLC0415
    from penstock.pipeline.session import check_java  # noqa: PLC0415

    check_java()
    options = JobOptions(
        server=Server(found.url, found.credential, ca),
        lake=lake,
        master=master,
        settings=_settings(conf),
        continuous=not once,
        interval_s=interval,
    )
    # Fail early if the server is unreachable; later the job waits for a server to restart.
    with options.server.open(ClientOptions(retry_ms=_SOON_MS)) as remote:
        remote.ask(lambda q: q.log_end())
    stopping = threading.Event()
    with _watching(name) as watcher, _asked_to_end(stopping):
        context = Context(
            options, run=random_prefix()[:_RUN_DIGITS], job=name, watcher=watcher, stopping=stopping
        )
        try:
            summary = run_job(job, context)
        finally:
            context.close()
    if choices().json:
        printing.document({"job": name, "run": context.run, **summary})
    else:
        printing.fields([("job", name), ("run", context.run), *_shown(summary)])
    return summary


def _shown(summary: Summary) -> list[tuple[str, str]]:
    return [
        (name, f"{value:,}" if isinstance(value, int) else str(value))
        for name, value in summary.items()
    ]


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise BadInput(f"{item!r} is not KEY=VALUE.", field="conf")
        pairs[key] = value
    return pairs


class _Bar:
    """Progress on a terminal."""

    def __init__(self, bar: Meter) -> None:
        self._bar = bar

    def reach(self, what: str, done: int, total: int | None = None) -> None:
        """Move the bar."""
        self._bar.name(what)
        self._bar.reach(done, total)

    def note(self, text: str) -> None:
        """Write a line."""
        printing.note(text)


class _Lines:
    """Progress in a log: a line for each new activity, and every few seconds."""

    def __init__(self) -> None:
        self._what = ""
        self._at = 0.0

    def reach(self, what: str, done: int, total: int | None = None) -> None:
        """Write a line if it is due."""
        now = time.monotonic()
        if what == self._what and now - self._at < _LINE_EVERY_S:
            return
        self._what, self._at = what, now
        printing.note(f"{what} {done:,}" + ("" if total is None else f" of {total:,}"))

    def note(self, text: str) -> None:
        """Write a line."""
        printing.note(text)


@contextmanager
def _watching(name: str) -> Iterator[_Bar | _Lines]:
    if sys.stderr.isatty():
        with meter(name) as bar:
            yield _Bar(bar)
    else:
        yield _Lines()


@contextmanager
def _asked_to_end(stopping: threading.Event) -> Iterator[None]:
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
