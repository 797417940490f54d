"""``penstock verify``: checks the laws on a store, also while it is in use."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import printing
from penstock.cli.exits import Exit
from penstock.cli.options import choices, target_options
from penstock.cli.printing import Cell, Column
from penstock.cli.progress import meter
from penstock.cli.session import on_target
from penstock.cli.showing import age, safe
from penstock.verbs import Verbs

__all__ = ["verify"]

_CHECKS: Final = (
    Column("law", style="bold"),
    Column("checked"),
    Column("examined", right=True),
    Column("violations", right=True, alarm=True),
    Column("unresolved", right=True),
    Column("note", style="dim", wide=True),
)


@click.command
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--quick", is_flag=True, help="Leave out payloads and histories.")
@target_options
@on_target
async def verify(q: Verbs, /, queues: tuple[str, ...], quick: bool) -> None:
    """Check the laws on all queues, or on those named.

    Checks everything that reading can check, and changes nothing; the store may be in use.
    Exits with 9 if a law is broken, and names the queues and messages.

    \b
    Examples:
      penstock verify
      penstock verify billing --quick
      penstock verify --store rocksdb:///var/lib/penstock --json
    """
    from penstock.verify import verify as run_verify  # noqa: PLC0415  (many modules)

    with meter("verifying") as bar:

        def told(what: str, done: int, total: int | None) -> None:
            bar.name(what)
            bar.reach(done, total)

        report = await run_verify(q, queues=queues or None, deep=not quick, progress=told)
    if choices().json:
        printing.document(report)
    else:
        rows: list[tuple[Cell, ...]] = [
            (
                check.law,
                check.name,
                check.examined,
                check.violation_count,
                check.unresolved,
                f"skipped: {check.skipped}" if check.skipped else check.note,
            )
            for check in report.checks
        ]
        printing.table(_CHECKS, rows, "")
        for violation in report.violations:
            click.echo(click.style("violation: ", fg="red", bold=True) + safe(str(violation)))
        took = age(report.finished_at - report.started_at)
        click.echo(
            f"{report.queues} queues, {report.log_entries} log entries, {report.deliveries} "
            f"deliveries in {took}: {report.violation_count} violations"
        )
    if not report.ok:
        raise click.exceptions.Exit(Exit.VIOLATIONS)
