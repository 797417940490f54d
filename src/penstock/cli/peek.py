"""``penstock peek``: browses a queue's deliveries by state and filter, without consuming them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import click

from penstock.cli import printing
from penstock.cli.options import choices, target_options
from penstock.cli.printing import Cell, Column
from penstock.cli.session import on_target
from penstock.cli.showing import moment, preview
from penstock.model.delivery import Page, Snapshot
from penstock.model.limits import MAX_PAGE
from penstock.model.states import State
from penstock.verbs import Verbs

__all__ = ["DELIVERIES", "delivery_row", "peek"]

DELIVERIES: Final = (
    Column("id", right=True, style="bold"),
    Column("topic"),
    Column("priority", right=True),
    Column("attempts", right=True),
    Column("at"),
    Column("consumer"),
    Column("headers", wide=True),
    Column("error", style="red", wide=True),
)


def delivery_row(item: Snapshot) -> tuple[Cell, ...]:
    """A row under ``DELIVERIES``."""
    at = item.at or item.claimed_at or item.message.published_at
    return (
        item.message.id,
        item.message.topic,
        item.message.priority,
        item.attempts,
        moment(at),
        item.consumer,
        printing.headers(item.message.headers),
        item.error,
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
@target_options
@on_target
async def peek(
    q: Verbs, /, queue: str, state: str, where: str | None, limit: int, payloads: bool
) -> None:
    """Browse deliveries of QUEUE in claim order. With --json, one line per delivery.

    \b
    Examples:
      penstock peek billing
      penstock peek billing --state failed --where "country = 'AT'" --payloads
      penstock peek billing.dlq --limit 100000 --json > dead-letters.ndjson
    """
    if choices().json:
        # The JSON form of the HTTP interface; nothing else here needs this import.
        from penstock.wire.payloads import shown_page  # noqa: PLC0415

        async for page in _pages(q, queue, state, where, limit, payloads):
            for shown in shown_page(page).items:
                printing.line(shown)
        return
    items = [
        item
        async for page in _pages(q, queue, state, where, limit, payloads)
        for item in page.items
    ]
    columns = (*DELIVERIES, Column("payload", wide=True)) if payloads else DELIVERIES
    rows = [
        (*delivery_row(item), preview(item.payload or b"")) if payloads else delivery_row(item)
        for item in items
    ]
    printing.table(columns, rows, f"{queue} has no such deliveries.")


async def _pages(
    q: Verbs, queue: str, state: str, where: str | None, limit: int, payloads: bool
) -> AsyncIterator[Page]:
    cursor: str | None = None
    while limit > 0:
        page = await q.peek(
            queue,
            state,
            where=where,
            limit=min(limit, MAX_PAGE),
            cursor=cursor,
            payloads=payloads,
        )
        yield page
        limit -= len(page.items)
        cursor = page.cursor
        if cursor is None:
            return
