"""``penstock store``, ``migrate`` and ``repair``: the identity, format and damage of a store.

``migrate`` upgrades a store to the format of this version. A database gets the tables that it
lacks. The key-value engine has had only one format so far, so there is nothing to change: opening
the store reads the format, and refuses one that a newer version wrote (``StoreTooNew``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.exits import Exit
from penstock.cli.options import Family, store_options
from penstock.cli.printing import moment
from penstock.cli.session import (
    Target,
    find_target,
    on_target,
    open_store,
    refuse_missing,
    run,
    store_path,
)
from penstock.errors import BadUrl
from penstock.model.identity import StoreIdentity
from penstock.model.secrets import mask_password

if TYPE_CHECKING:
    from penstock.storage.keyvalue.repair import Loss

__all__ = ["migrate", "repair", "store"]

#: Schemes of stores in a database.
_DATABASES: Final = frozenset({"postgresql", "mysql"})


@click.group(cls=Family)
def store() -> None:
    """Show the identity of a store, or begin a new epoch.

    Lakes and checkpoints record the identity and the epoch of their store, and any other store
    refuses them: its offsets refer to other messages.

    \b
    Examples:
      penstock store show
      penstock store new-epoch --store rocksdb:///var/lib/penstock
    """


@store.command
@on_target
async def show(q: QueueApi, /) -> None:
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
    target = find_target(store_only=True)
    refuse_missing(target)

    async def work() -> None:
        async with open_store(target) as broker:
            await broker.engine.new_epoch()
            _print(await broker.identity())

    run(work())


def _print(identity: StoreIdentity) -> None:
    printing.outcome(identity, f"store {identity.store}\nepoch {identity.epoch}")


# -- migrate --------------------------------------------------------------------------------


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
    target = find_target(store_only=True)
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
    found = {
        "store": store,
        "engine": engine,
        "format": done.after,
        "migrated": bool(done.applied),
        "before": done.before,
        "applied": list(done.applied),
    }
    if done.applied:
        text = (
            f"{store} had schema {done.before} and has schema {done.after}, the current one: "
            f"applied {', '.join(done.applied)}"
        )
    else:
        text = f"{store} has schema {done.after}, the current one: nothing to do"
    printing.outcome(found, text)


async def _migrate_folder(target: Target) -> None:
    async with open_store(target) as broker:
        engine = broker.engine
        name = engine.capabilities.engine
    # The engine is known once the store was opened, and only this engine has formats.
    from penstock.storage.keyvalue.engine import KeyValueEngine  # noqa: PLC0415

    assert isinstance(engine, KeyValueEngine)
    version = engine.format_version
    store = mask_password(target.store)
    printing.outcome(
        {"store": store, "engine": name, "format": version, "migrated": False},
        f"{store} ({name}) has format {version}, which this version writes: nothing to do",
    )


# -- repair ---------------------------------------------------------------------------------


@click.command
@click.option(
    "--accept-loss", is_flag=True, help="Continue without the missing data. Cannot be undone."
)
@store_options
def repair(accept_loss: bool) -> None:
    """Report what is missing from a damaged store in a folder.

    Without --accept-loss nothing is changed, and the exit code is 9 if data is missing. With it
    the store keeps everything up to the first missing commit and opens again; copy the folder
    first. Stop the server before you run it.

    \b
    Examples:
      penstock repair --store rocksdb:///var/lib/penstock
      penstock repair --store rocksdb:///var/lib/penstock --accept-loss
    """
    target = find_target(store_only=True)
    path = store_path(target)
    if path is None:
        raise BadUrl(
            "Only a store in a folder, rocksdb:///path or files:///path, can be repaired.",
            field="store",
        )
    refuse_missing(target)
    run(_repair(path, target.store, accept_loss))


async def _repair(path: Path, store: str, accept: bool) -> None:
    # Imports the whole engine.
    from penstock.storage.contract import EngineOptions  # noqa: PLC0415
    from penstock.storage.keyvalue.repair import accept_loss, examine  # noqa: PLC0415

    if accept:
        loss = await accept_loss(path, EngineOptions())
    else:
        loss = await asyncio.to_thread(examine, path)
    opens = f"{store} opens: nothing is known to be missing"
    text = opens if loss is None else "\n".join(_lines(store, loss))
    printing.outcome({"store": store, "loss": loss}, text)
    if loss is not None and not accept:
        raise click.exceptions.Exit(Exit.VIOLATIONS)


def _lines(store: str, loss: Loss) -> list[str]:
    lines = [f"{store} is damaged: {loss.reason}"]
    if loss.marked_commit is not None and loss.marked_at is not None:
        lines.append(
            f"known to be synced: up to commit {loss.marked_commit} of {moment(loss.marked_at)}, "
            f"where the log ended at offset {loss.marked_log_end}"
        )
    if loss.accepted_at is None:
        lines.append("nothing was changed; --accept-loss continues without the missing data")
        return lines
    lines.append(f"kept: up to commit {loss.kept_commit}")
    if loss.missing_commits:
        lines.append(f"missing: {loss.missing_commits} commits that were synced")
    if loss.missing_offsets is not None:
        first, last = loss.missing_offsets
        lines.append(f"missing: the log entries from offset {first} to {last}")
    lines.append("commits after the last mark may be missing as well")
    if loss.set_aside:
        lines.append(f"set aside: {', '.join(loss.set_aside)}")
    lines.append("the store opens again; the loss is recorded")
    return lines
