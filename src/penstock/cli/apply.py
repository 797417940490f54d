"""``penstock apply`` and ``penstock export``: queues and topics as a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec
from msgspec.structs import replace

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.amounts import LABEL
from penstock.cli.declaration import read_declaration, to_toml
from penstock.cli.declared_changes import Change, find_changes, make_change
from penstock.cli.options import choices
from penstock.cli.printing import safe
from penstock.cli.session import confirm, creating, on_target
from penstock.model.queue_events import RESERVED_PREFIX
from penstock.settings.toml_text import toml_value

__all__ = ["apply", "export"]

_MARKS: Final = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}


@click.command
@click.option(
    "--file", "-f", required=True, metavar="FILE", help="The file with queues and topics, or `-`."
)
@click.option("--dry-run", is_flag=True, help="Only print the changes.")
@click.option("--prune", is_flag=True, help="Delete queues and topics that are not in the file.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@creating
async def apply(q: QueueApi, /, file: str, dry_run: bool, prune: bool, yes: bool) -> None:
    """Make queues and topics as a TOML file says, and show what changes.

    Prints the changes and makes them. A field that the file leaves out keeps its value. Nothing
    is deleted without --prune. The whole file is checked before the first change.

    \b
    Examples:
      penstock apply -f queues.toml --dry-run
      penstock apply -f queues.toml --prune
    """
    declared = read_declaration(file)
    changes = await find_changes(q, declared, prune=prune)
    if not choices().json:
        _print(changes)
    deleted = [f"{item.kind} {item.name}" for item in changes if item.action == "delete"]
    if deleted and not dry_run:
        confirm(f"Delete {', '.join(deleted)}, with all deliveries of the queues?", yes)
    made = 0
    try:
        for change in changes if not dry_run else ():
            await make_change(q, declared, change)
            made += 1
    except BaseException:
        if not printing.as_json({"changes": _marked(changes, made), "applied": False}):
            _print_failure(changes, made)
        raise
    if not printing.as_json({"changes": _marked(changes, made), "applied": not dry_run}):
        _print_end(len(changes), dry_run=dry_run)


@click.command
@click.option(
    "--label", "labels", type=LABEL, multiple=True, help="Only queues with this label; repeatable."
)
@on_target
async def export(q: QueueApi, labels: tuple[tuple[str, str], ...]) -> None:
    """Print queues and topics as a TOML file for `penstock apply`.

    With --label it has these queues, and no topics. With --json it is JSON.

    \b
    Examples:
      penstock export > queues.toml
      penstock export --label team=billing
    """
    listed = await q.queues(labels=dict(labels))
    # Those of webhooks come with their webhooks.
    queues = tuple(info for info in listed if not info.name.startswith(RESERVED_PREFIX))
    topics = () if labels else await q.topics()
    shown = {
        "topics": dict(topics),
        "queues": {info.name: info.policy for info in queues},
    }
    if not printing.as_json(shown):
        click.echo(to_toml(queues, topics), nl=False)


def _print(changes: Sequence[Change]) -> None:
    for change in changes:
        mark, colour = _MARKS[change.action]
        click.echo(click.style(f"{mark} {change.kind} {safe(change.name)}", fg=colour))
        for line in _field_lines(change):
            click.echo(f"    {safe(line)}")


def _field_lines(change: Change) -> Iterator[str]:
    for field, (before, after) in change.fields.items():
        if change.action == "create":
            yield f"{field} = {_shown(after)}"
        else:
            yield f"{field}: {_shown(before)} -> {_shown(after)}"


def _shown(value: object) -> str:
    return "none" if value is None else toml_value(msgspec.to_builtins(value))


def _marked(changes: Sequence[Change], made: int) -> list[Change]:
    """The changes, the first of them marked as made."""
    return [replace(change, made=number < made) for number, change in enumerate(changes)]


def _print_failure(changes: Sequence[Change], made: int) -> None:
    names = [f"{change.kind} {change.name}" for change in changes]
    done = f": {', '.join(names[:made])}" if made else ""
    printing.note(f"{made} of {len(changes)} changes were made{done}.")
    printing.note(f"Not made: {', '.join(names[made:])}. The file can be applied again.")


def _print_end(count: int, *, dry_run: bool) -> None:
    if not count:
        printing.note("There is nothing to change.")
    else:
        what = "change" if count == 1 else "changes"
        printing.note(f"{count} {what}, not made" if dry_run else f"{count} {what} made")
