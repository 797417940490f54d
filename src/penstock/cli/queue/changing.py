"""Commands that change queues: create, update, pause, resume, delete."""

from __future__ import annotations

import click

from penstock.broker.queues import preview_of
from penstock.cli import printing
from penstock.cli.amounts import START
from penstock.cli.asking import confirm
from penstock.cli.options import choices, target_options
from penstock.cli.printing import Column
from penstock.cli.progress import meter
from penstock.cli.queue.policy import policy_options, to_changes
from penstock.cli.queue.telling import print_info
from penstock.cli.session import creating, on_target
from penstock.model.message import Offset
from penstock.model.queue import Backoff, QueueInfo, Start
from penstock.verbs import Verbs

__all__ = ["create", "delete", "pause", "resume", "update"]


@click.command
@click.argument("name")
@click.option("--filter", default="TRUE", show_default=True, help="The messages that it takes.")
@click.option(
    "--start",
    type=START,
    default="latest",
    show_default=True,
    help="Where in the log it starts; all but latest include older messages.",
)
@click.option("--dry-run", is_flag=True, help="Only print what the filter would take from the log.")
@policy_options
@target_options
@creating
async def create(
    q: Verbs, /, name: str, filter: str, start: Start, dry_run: bool, **policy: object
) -> None:
    """Create the queue NAME, or replace the policy of an existing one.

    \b
    Examples:
      penstock queue create billing --filter "topic = 'orders' AND amount >= 100"
      penstock queue create audit --start earliest --done-retention 7d
      penstock queue create alps --filter "country IN ('AT', 'CH')" --dry-run
    """
    if dry_run:
        await _preview(q, filter, start)
        return
    changes = to_changes(policy, Backoff())
    info = await q.create_queue(name, filter, start=start, **changes)
    await _catch_up(q, info)
    print_info(await q.queue(name))


@click.command
@click.argument("name")
@click.option("--filter", help="The messages that it takes from now on.")
@policy_options
@target_options
@on_target
async def update(q: Verbs, /, name: str, filter: str | None, **policy: object) -> None:
    """Change some fields of the queue's policy; the others stay.

    \b
    Examples:
      penstock queue update billing --max-attempts 10 --visibility-timeout 2m
      penstock queue update billing --max-depth none
    """
    changes = to_changes(policy, (await q.queue(name)).policy.backoff)
    if filter is not None:
        changes["filter"] = filter
    if not changes:
        raise click.UsageError("There is nothing to change: use at least one option.")
    print_info(await q.update_queue(name, **changes))


@click.command
@click.argument("name")
@target_options
@on_target
async def pause(q: Verbs, name: str) -> None:
    """Hand out nothing until `resume`; publishing continues.

    \b
    Example:
      penstock queue pause billing
    """
    await q.pause(name)
    await _told(q, name, "paused")


@click.command
@click.argument("name")
@target_options
@on_target
async def resume(q: Verbs, name: str) -> None:
    """Hand out deliveries again.

    \b
    Example:
      penstock queue resume billing
    """
    await q.resume(name)
    await _told(q, name, "resumed")


@click.command
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_options
@on_target
async def delete(q: Verbs, name: str, yes: bool) -> None:
    """Remove the queue, its deliveries and its dead letters; the log stays.

    \b
    Example:
      penstock queue delete billing --yes
    """
    numbers = await q.stats(name)
    confirm(f"Delete {name} with {numbers.depth} live and {numbers.failed} failed deliveries?", yes)
    await q.delete_queue(name)
    if choices().json:
        printing.document({"deleted": name})
    else:
        click.echo(f"deleted {name}")


async def _told(q: Verbs, name: str, what: str) -> None:
    if choices().json:
        printing.document(await q.queue(name))
    else:
        click.echo(f"{what} {name}")


async def _catch_up(q: Verbs, info: QueueInfo) -> None:
    """Route the older messages that a queue asked for; a crash meanwhile repeats nothing."""
    if info.cursor is None:
        return
    begin = info.cursor
    cursor: Offset | None = begin
    total = await q.log_end() - begin
    with meter("routing", total) as bar:
        while cursor is not None:
            bar.reach(cursor - begin)
            cursor = (await q.route(info.name)).cursor


async def _preview(q: Verbs, filter: str, start: Start) -> None:
    wanted, first = preview_of(filter, start)
    with meter("reading the log"):
        found = await q.preview(wanted, start=first)
    if choices().json:
        printing.document(
            {
                "count": found.count,
                "scanned": found.scanned,
                "sample": [entry.message for entry in found.sample],
            }
        )
        return
    click.echo(f"{found.count} of {found.scanned} messages in the log match")
    columns = (Column("id", right=True), Column("topic"), Column("headers", wide=True))
    rows = [
        (entry.message.id, entry.message.topic, printing.headers(entry.message.headers))
        for entry in found.sample
    ]
    if rows:
        printing.table(columns, rows, "")
