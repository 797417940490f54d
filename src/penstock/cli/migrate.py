"""``penstock migrate``: bring a store to the format of this Penstock.

The key-value engine has had one format so far, so there is nothing to change: opening the store
reads what is there, and refuses what a newer Penstock wrote (``StoreTooNew``).
"""

from __future__ import annotations

import click

from penstock.cli import printing
from penstock.cli.options import choices, store_options
from penstock.cli.session import open_store, run
from penstock.cli.target import Target, find_store, refuse_missing

__all__ = ["migrate"]


@click.command
@store_options
def migrate() -> None:
    """Bring a store to the present format.

    Opens it, and says which format that is. It needs the store for itself: stop the server
    first. Today's stores need no migration, and the command says so.

    \b
    Example:
      penstock migrate --store rocksdb:///var/lib/penstock
    """
    target = find_store()
    refuse_missing(target)
    run(_migrate(target))


async def _migrate(target: Target) -> None:
    async with open_store(target) as broker:
        capabilities = broker.engine.capabilities
    # Only a store that was opened tells its engine, and only this engine has formats.
    from penstock.storage.keyvalue.core import FORMAT_VERSION  # noqa: PLC0415

    if choices().json:
        printing.document(
            {
                "store": target.store,
                "engine": capabilities.engine,
                "format": FORMAT_VERSION,
                "migrated": False,
            }
        )
        return
    click.echo(
        f"{target.store} ({capabilities.engine}) has format {FORMAT_VERSION}, the present one: "
        "nothing to do"
    )
