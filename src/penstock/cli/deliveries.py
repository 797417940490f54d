"""``penstock peek`` and ``replay``: browse a queue's deliveries, and make them available again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import click

from penstock.api import BULK_LIMIT, QueueApi
from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.options import choices
from penstock.cli.printing import Column, moment, preview
from penstock.cli.progress import meter
from penstock.cli.session import on_target
from penstock.model.delivery import Page, ReplaySource, Snapshot
from penstock.model.limits import MAX_PAGE
from penstock.model.states import State

__all__ = ["peek", "replay"]

_COLUMNS: Final[tuple[Column[Snapshot], ...]] = (
    Column("id", lambda item: item.message.id, right=True, style="bold"),
    Column("topic", lambda item: item.message.topic),
    Column("priority", lambda item: item.message.priority, right=True),
    Column("attempts", lambda item: item.attempts, right=True),
    Column("at", lambda item: moment(item.at or item.claimed_at or item.message.published_at)),
    Column("consumer", lambda item: item.consumer),
    Column("headers", lambda item: printing.headers(item.message.headers), wide=True),
    Column("error", lambda item: printing.summary(item.error), style="red", wide=True),
)
_PAYLOAD: Final[Column[Snapshot]] = Column(
    "payload", lambda item: preview(item.payload or b""), wide=True
)


@click.command
@click.argument("queue")
@click.option(
    "--state",
    type=click.Choice([state.value for state in State]),
    default=State.AVAILABLE.value,
    show_default=True,
    help="The state of the deliveries.",
)
@click.option("--where", help="Only deliveries for which this filter is TRUE.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most this many."
)
@click.option("--payloads", is_flag=True, help="Show payloads too.")
@on_target
async def peek(
    q: QueueApi, /, queue: str, state: str, where: str | None, limit: int, payloads: bool
) -> None:
    """Browse deliveries of QUEUE in claim order. With --json, one line per delivery.

    \b
    Examples:
      penstock peek billing
      penstock peek billing --state failed --where "country = 'AT'" --payloads
      penstock peek billing.dlq --limit 100000 --json > dead-letters.ndjson
    """
    pages = _pages(q, queue, state, limit, where=where, payloads=payloads)
    if choices().json:
        # The JSON form of the HTTP interface; nothing else here needs this import.
        from penstock.wire.payloads import shown_page  # noqa: PLC0415

        async for page in pages:
            for shown in shown_page(page).items:
                printing.line(shown)
        return
    items = [item async for page in pages for item in page.items]
    columns = (*_COLUMNS, _PAYLOAD) if payloads else _COLUMNS
    printing.table(columns, items, f"{queue} has no such deliveries.")


async def _pages(
    q: QueueApi, queue: str, state: str, limit: int, **options: Any
) -> AsyncIterator[Page]:
    cursor: str | None = None
    while limit > 0:
        page = await q.peek(queue, state, limit=min(limit, MAX_PAGE), cursor=cursor, **options)
        yield page
        limit -= len(page.items)
        cursor = page.cursor
        if cursor is None:
            return


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
@click.option("--id", "ids", type=int, multiple=True, help="Only this message id; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only count, and show a sample.")
@click.option("--rate", type=click.IntRange(1), help="Deliveries per second; default: unlimited.")
@click.option(
    "--ttl",
    "ttl_ms",
    type=DURATION,
    help="Give them a new expiry, from when they are due. Without it expired ones are skipped.",
)
@click.option("--replay-id", help="A repeat with the same id moves nothing twice.")
@click.option(
    "--limit",
    type=click.IntRange(1, BULK_LIMIT),
    default=BULK_LIMIT,
    show_default=True,
    help="At most this many.",
)
@on_target
async def replay(
    q: QueueApi,
    /,
    queue: str,
    source: str,
    where: str | None,
    ids: tuple[int, ...],
    dry_run: bool,
    rate: int | None,
    ttl_ms: int | None,
    replay_id: str | None,
    limit: int,
) -> None:
    """Make deliveries of QUEUE available again, by filter or id.

    They come back with attempts 0, at their old position; live deliveries stay as they are. Try
    it with --dry-run first.

    \b
    Examples:
      penstock replay billing --where "country = 'AT'" --dry-run
      penstock replay billing --where "country = 'AT'" --replay-id ticket-4711
      penstock replay billing --id 4711
      penstock replay audit --from log --rate 500
    """
    # In one call: several calls could replay again what was settled between two of them.
    with meter("looking" if dry_run else "replaying"):
        reply = await q.replay(
            queue,
            source,
            where=where,
            ids=ids or None,
            limit=limit,
            rate=rate,
            dry_run=dry_run,
            replay_id=replay_id,
            ttl_ms=ttl_ms,
        )
    found = {"count": reply.count, "skipped": reply.skipped, "dry_run": dry_run}
    if printing.as_json({**found, "sample": reply.sample}):
        return
    what = "would be replayed" if dry_run else "replayed"
    skipped = f", {reply.skipped} skipped" if reply.skipped else ""
    noun = "delivery" if reply.count == 1 else "deliveries"
    click.echo(f"{reply.count} {noun} {what}{skipped}")
    if dry_run:
        printing.table(_COLUMNS, reply.sample)
