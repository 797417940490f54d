"""``penstock flow``: runs the flows that a Python file declares.

All flows of a file share one Spark session. Each has its own run, recorded with the broker like
that of a job. SIGINT and SIGTERM end them after the micro-batches that are under way.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from penstock.cli import printing
from penstock.cli.options import Family, server_options
from penstock.cli.pipeline.running import (
    JobWatcher,
    asked_to_end,
    prepared,
    shown,
    to_pairs,
)
from penstock.cli.progress import meter
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.pipeline.flow import Flow

__all__ = ["flow"]


@click.group(cls=Family)
def flow() -> None:
    """Write the rows of a queue to a topic or a table, each once.

    \b
    Examples:
      penstock flow apply flow.py
      penstock flow apply flow.py --once --master spark://master:7077
    """


@flow.command
@click.argument("file", metavar="FILE")
@server_options
@click.option(
    "--checkpoints",
    metavar="DIR",
    default="checkpoints",
    show_default=True,
    help="Where flows keep how far they are: a folder, or a URI for Spark.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Only this flow; may be repeated.")
@click.option(
    "--continuous/--once",
    default=True,
    show_default=True,
    help="Run until stopped, or until the queues are empty.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[*] (the default), spark://host:7077, yarn, k8s://…",
)
@click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    callback=to_pairs,
    help="A Spark setting; may be repeated.",
)
def apply(
    *,
    file: str,
    checkpoints: str,
    only: tuple[str, ...],
    continuous: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Run the flows of a Python file.

    A flow continues where it was stopped or killed, as long as it has the same checkpoint. A row
    that fails max_attempts times becomes a dead letter of its queue.

    \b
    Examples:
      penstock flow apply flow.py
      penstock flow apply flow.py --only invoices --once
    """
    from penstock.pipeline.flow import load_flows  # noqa: PLC0415  (slow to import)
    from penstock.pipeline.flow_runs import run_flows  # noqa: PLC0415

    chosen = _chosen(load_flows(file), only)
    options = prepared(master=master, lake=None, conf=conf, once=not continuous, interval=1.0)
    stopping = threading.Event()
    with meter("flow") as bar, asked_to_end(stopping):
        ended = run_flows(options, chosen, checkpoints, watcher=JobWatcher(bar), stopping=stopping)
    failed = [error for one in ended if (error := one.exception()) is not None]
    summaries = [one.result() for one in ended if one.exception() is None]
    for summary in summaries:
        if not printing.as_json(summary):
            printing.fields(shown(summary))
    if failed:
        raise failed[0]


def _chosen(flows: list[Flow], only: tuple[str, ...]) -> list[Flow]:
    names = [one.name for one in flows]
    unknown = next((name for name in only if name not in names), None)
    if unknown is not None:
        raise BadInput(f"There is no flow {unknown!r}; there are {', '.join(names)}.", field="only")
    return [one for one in flows if not only or one.name in only]
