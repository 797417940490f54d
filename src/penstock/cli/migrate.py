"""``penstock migrate``: upgrades a store to the format of this version.

A database gets the tables that it lacks. The key-value engine has had only one format so far, so
there is nothing to change: opening the store reads the format, and refuses one that a newer
version wrote (``StoreTooNew``).
"""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import printing
from penstock.cli.options import choices, store_options
from penstock.cli.session import open_store, run
from penstock.cli.target import Target, find_store, refuse_missing
from penstock.model.secrets import mask_password

__all__ = ["migrate"]

#: Schemes of stores in a database.
_DATABASES: Final = frozenset({"postgresql", "mysql"})


@click.command
@store_options
def migrate() -> None:
    """Upgrade a store to the current format.

    In a database it creates or changes the tables. Servers refuse a schema of another version,
    so run it once before the first one starts, and after an upgrade. It is safe to run it several
    times, also concurrently.

    A store in a folder needs no migration today. The command prints its format, and needs
    exclusive access: stop the server first.

    \b
    Examples:
      penstock migrate --store postgresql://penstock:secret@db.example.com/penstock
      penstock migrate --store rocksdb:///var/lib/penstock
    """
    target = find_store()
    scheme = target.store.partition(":")[0].lower()
    if scheme in _DATABASES:
        run(_migrate_database(target.store, scheme))
    else:
        refuse_missing(target)
        run(_migrate_folder(target))


async def _migrate_database(url: str, engine: str) -> None:
    # Imported only if the store is in a database.
    from penstock.storage.sql.migrations import migrate as migrate_database  # noqa: PLC0415

    done = await migrate_database(url)
    store = mask_password(url)
    if choices().json:
        printing.document(
            {
                "store": store,
                "engine": engine,
                "format": done.after,
                "migrated": bool(done.applied),
                "before": done.before,
                "applied": list(done.applied),
            }
        )
    elif done.applied:
        click.echo(
            f"{store} had schema {done.before} and has schema {done.after}, the current one: "
            f"applied {', '.join(done.applied)}"
        )
    else:
        click.echo(f"{store} has schema {done.after}, the current one: nothing to do")


async def _migrate_folder(target: Target) -> None:
    async with open_store(target) as broker:
        engine = broker.engine
        capabilities = engine.capabilities
    # The engine is known once the store was opened, and only this engine has formats.
    from penstock.storage.keyvalue.engine import KeyValueEngine  # noqa: PLC0415

    assert isinstance(engine, KeyValueEngine)
    version = engine.format_version
    store = mask_password(target.store)
    if choices().json:
        printing.document(
            {
                "store": store,
                "engine": capabilities.engine,
                "format": version,
                "migrated": False,
            }
        )
        return
    click.echo(
        f"{store} ({capabilities.engine}) has format {version}, which this version writes: "
        "nothing to do"
    )
