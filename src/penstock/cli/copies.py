"""``penstock copy``, ``backup`` and ``restore``: whole stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli import printing
from penstock.cli.options import printing_options, store_options
from penstock.cli.progress import meter
from penstock.cli.session import find_target, refuse_missing, run
from penstock.model.secrets import mask_password

if TYPE_CHECKING:
    from penstock.copying import Report

__all__ = ["backup", "copy", "restore"]


@contextmanager
def _bar() -> Iterator[Report]:
    """Show the stage and how many items it has passed."""
    with meter("items") as update:

        def report(stage: str, items: int) -> None:
            update(description=stage, completed=items)

        yield report


@click.command
@click.argument("from_url")
@click.argument("to_url")
@printing_options
def copy(from_url: str, to_url: str) -> None:
    """Copy a whole store into an empty one, of any engine.

    Stop every server and program that uses the source first. An interrupted copy is continued by
    the same command, and nothing can open the target before it is complete. The copy is then read
    back and compared. Workers go on with the receipts that they have.

    The source is not changed. From a key-value store into a database, messages get new ids.

    \b
    Examples:
      penstock copy rocksdb:///var/lib/penstock postgresql://penstock:secret@db/penstock
      penstock copy files:///data/queue slatedb+s3://bucket/queue
    """
    # Imports the engines.
    from penstock.copying import copy_store  # noqa: PLC0415

    async def work() -> None:
        with _bar() as report:
            done = await copy_store(from_url, to_url, report)
        source, target = mask_password(from_url), mask_password(to_url)
        total = sum(done.items.values())
        text = f"{target} is a copy of {source}: {total} items, read back and compared"
        if done.renumbered:
            text += "\nmessages have new ids; the copy is another store for lakes and streams"
        else:
            text += (
                "\nthe copy has begun a new epoch: `penstock pipeline archive --adopt` continues"
            )
            text += " a lake"
        found = {
            "source": source,
            "target": target,
            "items": done.items,
            "continued": done.continued,
            "renumbered": done.renumbered,
        }
        printing.outcome(found, text)

    run(work())


@click.command
@click.argument("destination")
@store_options
def backup(destination: str) -> None:
    """Back up a store in a folder or a bucket, also while it is served.

    DESTINATION is a new folder, or a path in a bucket such as s3://bucket/path. Everything that
    was acknowledged before the command began is in the backup. Run it on the server's machine, as
    the server's user; a store on an object store can be backed up from anywhere.

    Databases have their own ways; see docs/operations.md.

    \b
    Examples:
      penstock backup --store rocksdb:///var/lib/penstock /backups/monday
      penstock backup --store slatedb+s3://bucket/queue s3://backups/queue/monday
    """
    target = find_target(store_only=True)
    refuse_missing(target)
    # Imports the engines.
    from penstock.backup import back_up  # noqa: PLC0415

    async def work() -> None:
        with _bar() as report:
            manifest = await back_up(target.store, destination, report)
        store, place = mask_password(target.store), mask_password(destination)
        size = sum(part.size for part in manifest.parts)
        found = {
            "store": store,
            "backup": place,
            "items": manifest.totals.items,
            "bytes": size,
            "parts": len(manifest.parts),
            "began_at": manifest.began_at,
        }
        text = f"{place} is a backup of {store}: {manifest.totals.items} items in {size} bytes"
        printing.outcome(found, text)

    run(work())


@click.command
@click.argument("source")
@click.argument("to_url")
@printing_options
def restore(source: str, to_url: str) -> None:
    """Restore a backup into a new store, which begins a new epoch.

    The backup is checked completely before anything is written. Nothing is ever overwritten: the
    target must not have a store yet. An interrupted restore is continued by the same command.

    \b
    Examples:
      penstock restore /backups/monday rocksdb:///var/lib/penstock
      penstock restore s3://backups/queue/monday slatedb+s3://bucket/restored
    """
    # Imports the engines.
    from penstock.backup import restore as restore_backup  # noqa: PLC0415

    async def work() -> None:
        with _bar() as report:
            done = await restore_backup(source, to_url, report)
        place, target = mask_password(source), mask_password(to_url)
        total = sum(done.items.values())
        found = {
            "backup": place,
            "target": target,
            "items": done.items,
            "continued": done.continued,
        }
        text = f"{target} is restored from {place}: {total} items, in a new epoch"
        printing.outcome(found, text)

    run(work())
