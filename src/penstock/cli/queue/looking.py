"""Commands that inspect queues: list, show, stats, explain. Nothing is consumed."""

from __future__ import annotations

import asyncio

import click
from msgspec.structs import asdict

from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.options import choices, target_options
from penstock.cli.printing import Column
from penstock.cli.queue.telling import (
    NUMBERS,
    called,
    combined,
    info_fields,
    numbers,
    stat_fields,
)
from penstock.cli.session import on_target
from penstock.cli.showing import safe
from penstock.model.delivery import QueueStats
from penstock.verbs import Verbs

__all__ = ["explain", "list_queues", "show", "stats"]

_PARTITIONS = (
    Column("partition"),
    Column("owner"),
    Column("epoch", right=True),
    Column("unsettled", right=True),
    Column("in flight", right=True),
    Column("watermark", right=True),
)


@click.command(name="list")
@target_options
@on_target
async def list_queues(q: Verbs) -> None:
    """List all queues with their statistics.

    \b
    Examples:
      penstock queue list
      penstock queue list --json | jq '.[] | select(.stats.failed > 0) | .name'
    """
    listed = [(info, await q.stats(info.name)) for info in await q.queues()]
    if choices().json:
        printing.document([combined(info, counted) for info, counted in listed])
        return
    columns = (*NUMBERS, Column("filter", style="dim", wide=True))
    rows = [(*numbers(called(info), counted), info.policy.filter) for info, counted in listed]
    printing.table(columns, rows, "There are no queues.")


@click.command
@click.argument("name")
@target_options
@on_target
async def show(q: Verbs, name: str) -> None:
    """Show the queue's policy and statistics.

    \b
    Examples:
      penstock queue show billing
      penstock queue show billing.dlq --json
    """
    info, counted = await q.queue(name), await q.stats(name)
    if choices().json:
        printing.document(combined(info, counted))
        return
    printing.fields(info_fields(info))
    click.echo()
    printing.fields(stat_fields(counted))
    if counted.partitions:
        click.echo()
        rows = [
            (part.partition, part.owner, part.epoch, part.unsettled, part.in_flight, part.watermark)
            for part in counted.partitions
        ]
        printing.table(_PARTITIONS, rows, "")


@click.command
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--every", "every_ms", type=DURATION, default="1s", show_default=True, help="The interval."
)
@target_options
@on_target
async def stats(q: Verbs, names: tuple[str, ...], watch: bool, every_ms: int) -> None:
    """Print statistics of the queues NAME, or of all. With --json, one line per queue.

    \b
    Examples:
      penstock queue stats
      penstock queue stats billing billing.dlq --watch
      penstock queue stats billing --json | jq .available
    """
    while True:
        wanted = names or tuple(info.name for info in await q.queues())
        counted = [(name, await q.stats(name)) for name in wanted]
        if watch and not choices().json:
            # Does nothing unless stdout is a terminal.
            click.clear()
        _print_stats(counted)
        if not watch:
            return
        await asyncio.sleep(every_ms / 1000)


@click.command
@click.argument("name")
@click.argument("message_id", type=int)
@target_options
@on_target
async def explain(q: Verbs, name: str, message_id: int) -> None:
    """Explain why the queue does, or does not, hand out a message.

    \b
    Example:
      penstock queue explain billing 17
    """
    why = await q.explain(name, message_id)
    if choices().json:
        printing.document(why)
        return
    state = "not in the queue" if why.state is None else why.state.value
    told = "a claim would get it now" if why.deliverable else "a claim would not get it"
    click.echo(f"message {why.message_id} in {why.queue}: {state}; {told}")
    for reason in why.reasons:
        click.echo(f"  {safe(reason)}")


def _print_stats(counted: list[tuple[str, QueueStats]]) -> None:
    if choices().json:
        for name, each in counted:
            printing.line({"queue": name, **asdict(each)})
    else:
        rows = [numbers(name, each) for name, each in counted]
        printing.table(NUMBERS, rows, "There are no queues.")
