"""``penstock queue purge``: removes deliveries permanently, in bounded steps."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import printing
from penstock.cli.asking import confirm
from penstock.cli.options import choices, target_options
from penstock.cli.progress import meter
from penstock.cli.session import on_target
from penstock.model.states import State
from penstock.verbs import BULK_LIMIT, Verbs

__all__ = ["purge"]

#: Deliveries per call: keeps commits small and the progress bar moving.
_STEP: Final = 10_000
_STATES: Final = [state.value for state in State if state is not State.IN_FLIGHT]


@click.command
@click.argument("name")
@click.option("--state", type=click.Choice(_STATES), required=True, help="The state to remove.")
@click.option("--where", help="Only deliveries for which this filter is TRUE.")
@click.option(
    "--limit", type=click.IntRange(1, BULK_LIMIT), help="At most this many; by default all."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_options
@on_target
async def purge(
    q: Verbs, name: str, state: str, where: str | None, limit: int | None, yes: bool
) -> None:
    """Permanently remove deliveries in one state. Messages stay in the log.

    \b
    Examples:
      penstock queue purge billing --state failed --where "country = 'AT'" --yes
      penstock queue purge billing --state available
    """
    present = getattr(await q.stats(name), state)
    narrowed = f" where {where}" if where else ""
    confirm(f"Purge {state} deliveries of {name}{narrowed} (of {present})?", yes)
    count, more = 0, True
    with meter("purging", present if where is None else None) as bar:
        while more and (limit is None or count < limit):
            step = _STEP if limit is None else min(_STEP, limit - count)
            reply = await q.purge(name, state, where=where, limit=step)
            count, more = count + reply.count, reply.more
            bar.reach(count)
    if choices().json:
        printing.document({"count": count, "more": more})
    else:
        click.echo(f"purged {count} {state} deliveries of {name}{', more are left' * more}")
