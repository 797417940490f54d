"""``penstock pipeline``: the command group."""

from __future__ import annotations

import click

from penstock.cli.family import Family
from penstock.cli.pipeline.commands import (
    archive,
    ingest,
    replay,
    report,
    retention,
    route,
    run_all,
    verify,
)

__all__ = ["pipeline"]


@click.group(cls=Family)
def pipeline() -> None:
    """Spark jobs over all published messages.

    They run on this machine unless --master says otherwise, and may be killed and restarted at
    any moment. Requires Java and penstock[spark].

    \b
    Examples:
      penstock pipeline archive --lake ./lake
      penstock pipeline report --lake ./lake --output ./report
    """


for command in (route, archive, retention, report, replay, ingest, verify, run_all):
    pipeline.add_command(command)
