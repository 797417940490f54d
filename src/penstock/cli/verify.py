"""``penstock verify``: checks the laws on a store, also while it is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.exits import Exit
from penstock.cli.printing import Column, age, safe
from penstock.cli.progress import meter
from penstock.cli.session import on_target

if TYPE_CHECKING:
    from penstock.verify import Check

__all__ = ["verify"]


def _note(check: Check) -> str | None:
    return f"skipped: {check.skipped}" if check.skipped else check.note


_CHECKS: Final[tuple[Column[Check], ...]] = (
    Column("law", lambda check: check.law, style="bold"),
    Column("checked", lambda check: check.name),
    Column("examined", lambda check: check.examined, right=True),
    Column("violations", lambda check: check.violation_count, right=True, alarm=True),
    Column("unresolved", lambda check: check.unresolved, right=True),
    Column("note", _note, style="dim", wide=True),
)


@click.command
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--quick", is_flag=True, help="Leave out payloads and histories.")
@on_target
async def verify(q: QueueApi, /, queues: tuple[str, ...], quick: bool) -> None:
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
        report = await run_verify(
            q,
            queues=queues or None,
            deep=not quick,
            progress=lambda what, done, total: bar(description=what, completed=done, total=total),
        )
    if not printing.as_json(report):
        printing.table(_CHECKS, report.checks)
        for violation in report.violations:
            click.echo(click.style("violation: ", fg="red", bold=True) + safe(str(violation)))
        took = age(report.finished_at - report.started_at)
        click.echo(
            f"{report.queues} queues, {report.log_entries} log entries, {report.deliveries} "
            f"deliveries in {took}: {report.violation_count} violations"
        )
    if not report.ok:
        raise click.exceptions.Exit(Exit.VIOLATIONS)
