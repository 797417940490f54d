"""``penstock queue``: the command group."""

from __future__ import annotations

import click

from penstock.cli.family import Family
from penstock.cli.queue.changing import create, delete, pause, resume, update
from penstock.cli.queue.looking import explain, list_queues, show, stats
from penstock.cli.queue.purging import purge

__all__ = ["queue"]


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


for command in (create, update, list_queues, show, stats, explain, pause, resume, purge, delete):
    queue.add_command(command)
