"""``penstock queue``: create, change, inspect and empty queues."""

from __future__ import annotations

import asyncio
from typing import Final, cast

import click
from msgspec.structs import asdict

from penstock.api import BULK_LIMIT, QueueApi
from penstock.cli import printing
from penstock.cli.amounts import DURATION, LABEL, START
from penstock.cli.options import Family, choices
from penstock.cli.printing import safe
from penstock.cli.progress import meter
from penstock.cli.queue.formatting import (
    MESSAGES,
    NUMBERS,
    PARTITIONS,
    QUEUES,
    Counted,
    called,
    combined,
    info_fields,
    print_info,
    stat_fields,
)
from penstock.cli.queue.policy import policy_options, to_changes
from penstock.cli.session import confirm, creating, on_target
from penstock.model.message import Offset
from penstock.model.policy_fields import PolicyChanges, PolicyFields
from penstock.model.queue import Backoff, IfExists, QueueInfo, Start
from penstock.model.server_settings import NEAR
from penstock.model.states import State

__all__ = ["queue"]

#: Deliveries per call of purge: keeps commits small and the progress bar moving.
_PURGE_STEP: Final = 10_000
_PURGED_STATES: Final = [state.value for state in State if state is not State.IN_FLIGHT]


@click.group(cls=Family)
def queue() -> None:
    """Create, change, inspect and empty queues.

    A queue is a filter over all published messages, with its own delivery state. NAME.dlq is its
    dead-letter queue, with the failed deliveries.

    \b
    Examples:
      penstock queue create billing --filter "topic = 'orders' AND amount >= 100"
      penstock queue list
      penstock queue explain billing 17
    """


@queue.command
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
@click.option(
    "--if-exists",
    type=click.Choice([choice.value for choice in IfExists]),
    default=IfExists.REFUSE.value,
    show_default=True,
    help="Refuse an existing queue with another policy, keep it, or replace its policy.",
)
@policy_options
@creating
async def create(
    q: QueueApi,
    /,
    name: str,
    filter: str,
    start: Start,
    dry_run: bool,
    if_exists: str,
    **policy: object,
) -> None:
    """Create the queue NAME.

    \b
    Examples:
      penstock queue create billing --filter "topic = 'orders' AND amount >= 100"
      penstock queue create audit --start earliest --done-retention 7d
      penstock queue create alps --filter "country IN ('AT', 'CH')" --dry-run
    """
    if dry_run:
        await _preview(q, filter, start)
        return
    changes = to_changes({**policy, "filter": filter}, Backoff())
    create = {"refuse": q.create_queue, "keep": q.ensure_queue, "replace": q.put_queue}[if_exists]
    info = await create(name, start=start, **changes)
    await _catch_up(q, info)
    print_info(await q.queue(name))


@queue.command
@click.argument("name")
@click.option("--filter", help="The messages that it takes from now on.")
@click.option(
    "--default",
    "defaults",
    metavar="FIELD",
    type=click.Choice(sorted(PolicyFields.__annotations__)),
    multiple=True,
    help="A field, such as max_attempts, that takes the server's default again; repeatable.",
)
@policy_options
@on_target
async def update(
    q: QueueApi, /, name: str, filter: str | None, defaults: tuple[str, ...], **policy: object
) -> None:
    """Change some fields of the queue's policy; the others stay.

    \b
    Examples:
      penstock queue update billing --max-attempts 10 --lease 2m
      penstock queue update billing --max-depth none
      penstock queue update billing --default lease_ms --default backoff
    """
    changes = to_changes(policy, (await q.queue(name)).policy.backoff)
    if both := sorted(changes.keys() & set(defaults)):
        raise click.UsageError(f"{both[0]} is given a value and its default.")
    changes.update(cast(PolicyChanges, dict.fromkeys(defaults)))
    if filter is not None:
        changes["filter"] = filter
    if not changes:
        raise click.UsageError("There is nothing to change: use at least one option.")
    print_info(await q.update_queue(name, **changes))


@queue.command(name="list")
@click.option(
    "--label", "labels", type=LABEL, multiple=True, help="Only queues with this label; repeatable."
)
@on_target
async def list_queues(q: QueueApi, labels: tuple[tuple[str, str], ...]) -> None:
    """List queues with their statistics.

    \b
    Examples:
      penstock queue list
      penstock queue list --label team=billing
      penstock queue list --json | jq '.[] | select(.stats.failed > 0) | .name'
    """
    listed = [(info, await q.stats(info.name)) for info in await q.queues(labels=dict(labels))]
    if not printing.as_json([combined(info, counted) for info, counted in listed]):
        rows = [Counted(called(info), counted, info.policy.filter) for info, counted in listed]
        printing.table(QUEUES, rows, "There are no queues.")


@queue.command
@click.argument("name")
@on_target
async def show(q: QueueApi, name: str) -> None:
    """Show the queue's policy and statistics.

    \b
    Examples:
      penstock queue show billing
      penstock queue show billing.dlq --json
    """
    info, counted = await q.queue(name), await q.stats(name)
    if printing.as_json(combined(info, counted)):
        return
    printing.fields(info_fields(info))
    click.echo()
    printing.fields(stat_fields(counted))
    if counted.partitions:
        click.echo()
        printing.table(PARTITIONS, counted.partitions)


@queue.command
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--every", "every_ms", type=DURATION, default="1s", show_default=True, help="The interval."
)
@on_target
async def stats(q: QueueApi, names: tuple[str, ...], watch: bool, every_ms: int) -> None:
    """Print statistics of the queues NAME, or of all. With --json, one line per queue.

    \b
    Examples:
      penstock queue stats
      penstock queue stats billing billing.dlq --watch
      penstock queue stats billing --json | jq .available
    """
    while True:
        wanted = names or tuple(info.name for info in await q.queues())
        counted = [Counted(name, await q.stats(name)) for name in wanted]
        if watch and not choices().json:
            # Does nothing unless stdout is a terminal.
            click.clear()
        if choices().json:
            for item in counted:
                printing.line({"queue": item.name, **asdict(item.stats)})
        else:
            printing.table(NUMBERS, counted, "There are no queues.")
        if not watch:
            return
        await asyncio.sleep(every_ms / 1000)


@queue.command
@click.argument("name")
@click.argument("message_id", type=int)
@on_target
async def explain(q: QueueApi, name: str, message_id: int) -> None:
    """Explain why the queue does, or does not, hand out a message.

    \b
    Example:
      penstock queue explain billing 17
    """
    why = await q.explain(name, message_id)
    if printing.as_json(why):
        return
    state = "not in the queue" if why.state is None else why.state.value
    claim = "a claim would get it now" if why.deliverable else "a claim would not get it"
    click.echo(f"message {why.message_id} in {why.queue}: {state}; {claim}")
    for reason in why.reasons:
        click.echo(f"  {safe(reason)}")


@queue.command
@click.argument("name")
@on_target
async def pause(q: QueueApi, name: str) -> None:
    """Hand out nothing until `resume`; publishing continues.

    \b
    Example:
      penstock queue pause billing
    """
    await q.pause(name)
    await _print_done(q, name, "paused")


@queue.command
@click.argument("name")
@on_target
async def resume(q: QueueApi, name: str) -> None:
    """Hand out deliveries again.

    \b
    Example:
      penstock queue resume billing
    """
    await q.resume(name)
    await _print_done(q, name, "resumed")


@queue.command
@click.argument("name")
@click.option(
    "--state", type=click.Choice(_PURGED_STATES), required=True, help="The state to remove."
)
@click.option("--where", help="Only deliveries for which this filter is TRUE.")
@click.option("--id", "ids", type=int, multiple=True, help="Only this message id; repeatable.")
@click.option(
    "--limit", type=click.IntRange(1, BULK_LIMIT), help="At most this many; by default all."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_target
async def purge(
    q: QueueApi,
    name: str,
    state: str,
    where: str | None,
    ids: tuple[int, ...],
    limit: int | None,
    yes: bool,
) -> None:
    """Permanently remove deliveries in one state. Messages stay in the log.

    \b
    Examples:
      penstock queue purge billing --state failed --where "country = 'AT'" --yes
      penstock queue purge billing --state available --id 17 --id 21
    """
    present = getattr(await q.stats(name), state)
    narrowed = f" where {where}" if where else ""
    if ids:
        narrowed = f" with {len(ids)} ids{narrowed}"
    confirm(f"Purge {state} deliveries of {name}{narrowed} (of {present})?", yes)
    count, more = 0, True
    with meter("purging", present if where is None and not ids else None) as bar:
        while more and (limit is None or count < limit):
            step = _PURGE_STEP if limit is None else min(_PURGE_STEP, limit - count)
            reply = await q.purge(name, state, where=where, ids=ids or None, limit=step)
            count, more = count + reply.count, reply.more
            bar(completed=count)
    noun = "delivery" if count == 1 else "deliveries"
    text = f"purged {count} {state} {noun} of {name}{', more are left' * more}"
    printing.outcome({"count": count, "more": more}, text)


@queue.command
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_target
async def delete(q: QueueApi, name: str, yes: bool) -> None:
    """Remove a queue with its deliveries and dead letters.

    The messages stay in the log.

    \b
    Example:
      penstock queue delete billing --yes
    """
    numbers = await q.stats(name)
    confirm(f"Delete {name} with {numbers.depth} live and {numbers.failed} failed deliveries?", yes)
    await q.delete_queue(name)
    printing.outcome({"deleted": name}, f"deleted {name}")


async def _print_done(q: QueueApi, name: str, what: str) -> None:
    if choices().json:
        printing.document(await q.queue(name))
    else:
        click.echo(f"{what} {name}")


async def _catch_up(q: QueueApi, info: QueueInfo) -> None:
    """Route the older messages that a queue asked for; a crash meanwhile repeats nothing.

    A server that leaves such queues to the pipeline would only compete with it.
    """
    if info.cursor is None:
        return
    begin = info.cursor
    cursor: Offset | None = begin
    total = await q.log_end() - begin
    if total > NEAR and (await q.server_settings()).routing == "pipeline":
        printing.note(
            f"{info.name} is {total:,} log entries behind, and this server leaves that to Spark: "
            f"run penstock pipeline route {info.name}"
        )
        return
    with meter("routing", total) as bar:
        while cursor is not None:
            bar(completed=cursor - begin)
            cursor = (await q.route(info.name)).cursor


async def _preview(q: QueueApi, filter: str, start: Start) -> None:
    from penstock.broker.queues import preview_of  # noqa: PLC0415  (the filter parser)

    wanted, first = preview_of(filter, start)
    with meter("reading the log"):
        found = await q.preview(wanted, start=first)
    messages = [entry.message for entry in found.sample]
    if printing.as_json({"count": found.count, "scanned": found.scanned, "sample": messages}):
        return
    click.echo(f"{found.count} of {found.scanned} messages in the log match")
    printing.table(MESSAGES, messages)
