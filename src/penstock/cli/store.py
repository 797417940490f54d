"""``penstock store``: the identity of a store, and a new epoch after a restore."""

from __future__ import annotations

import click

from penstock.cli import printing
from penstock.cli.family import Family
from penstock.cli.options import choices, store_options, target_options
from penstock.cli.session import on_target, open_store, run
from penstock.cli.target import find_store, refuse_missing
from penstock.model.identity import StoreIdentity
from penstock.verbs import Verbs

__all__ = ["store"]


@click.group(cls=Family)
def store() -> None:
    """Show the identity of a store, and begin a new epoch after a restore.

    Lakes and checkpoints record the identity and the epoch of their store, and any other store
    refuses them: its offsets refer to other messages.

    \b
    Examples:
      penstock store show
      penstock store new-epoch --store rocksdb:///var/lib/penstock
    """


@store.command
@target_options
@on_target
async def show(q: Verbs, /) -> None:
    """Show identity and epoch, as the tenant sees them.

    \b
    Example:
      penstock store show --url https://queue.example.org
    """
    _print(await q.identity())


@store.command("new-epoch")
@store_options
def new_epoch() -> None:
    """Begin a new epoch, for every tenant.

    Run it on a store that was restored from a snapshot of a disk or a file system, before the
    first server starts: Penstock cannot detect such a restore. It does detect folders that were
    copied, and databases that were loaded from a dump, copied or promoted.

    \b
    Example:
      penstock store new-epoch --store rocksdb:///var/lib/penstock
    """
    target = find_store()
    refuse_missing(target)

    async def work() -> None:
        async with open_store(target) as broker:
            await broker.engine.new_epoch()
            _print(await broker.identity())

    run(work())


def _print(identity: StoreIdentity) -> None:
    if choices().json:
        printing.document(identity)
    else:
        click.echo(f"store {identity.store}\nepoch {identity.epoch}")
