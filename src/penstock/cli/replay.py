"""``penstock replay``: makes deliveries available again, by filter."""

from __future__ import annotations

import click

from penstock.cli import printing
from penstock.cli.options import choices, target_options
from penstock.cli.peek import DELIVERIES, delivery_row
from penstock.cli.progress import meter
from penstock.cli.session import on_target
from penstock.model.delivery import ReplaySource
from penstock.verbs import BULK_LIMIT, Verbs

__all__ = ["replay"]


@click.command
@click.argument("queue")
@click.option(
    "--from",
    "source",
    type=click.Choice([source.value for source in ReplaySource]),
    default=ReplaySource.FAILED.value,
    show_default=True,
    help="What to replay: failed or done deliveries, or matching entries of the log.",
)
@click.option("--where", help="Only messages for which this filter is TRUE.")
@click.option("--dry-run", is_flag=True, help="Only count, and show a sample.")
@click.option("--rate", type=click.IntRange(1), help="Deliveries per second; default: unlimited.")
@click.option("--replay-id", help="A repeat with the same id moves nothing twice.")
@click.option(
    "--limit",
    type=click.IntRange(1, BULK_LIMIT),
    default=BULK_LIMIT,
    show_default=True,
    help="At most this many.",
)
@target_options
@on_target
async def replay(
    q: Verbs,
    /,
    queue: str,
    source: str,
    where: str | None,
    dry_run: bool,
    rate: int | None,
    replay_id: str | None,
    limit: int,
) -> None:
    """Make deliveries of QUEUE available again, by filter.

    They come back with attempts 0, at their old position; live deliveries stay as they are. Try
    it with --dry-run first.

    \b
    Examples:
      penstock replay billing --where "country = 'AT'" --dry-run
      penstock replay billing --where "country = 'AT'" --replay-id ticket-4711
      penstock replay audit --from log --rate 500
    """
    # In one call: several calls could replay again what was settled between two of them.
    with meter("looking" if dry_run else "replaying"):
        reply = await q.replay(
            queue,
            source,
            where=where,
            limit=limit,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
        )
    if choices().json:
        printing.document(
            {
                "count": reply.count,
                "skipped": reply.skipped,
                "dry_run": dry_run,
                "sample": reply.sample,
            }
        )
        return
    what = "would be replayed" if dry_run else "replayed"
    skipped = f", {reply.skipped} skipped" if reply.skipped else ""
    click.echo(f"{reply.count} deliveries {what}{skipped}")
    if dry_run and reply.sample:
        printing.table(DELIVERIES, [delivery_row(item) for item in reply.sample], "")
