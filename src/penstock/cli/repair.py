"""``penstock repair``: reports what a damaged store has lost, and can make it open without that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli import printing
from penstock.cli.exits import Exit
from penstock.cli.options import choices, store_options
from penstock.cli.session import run
from penstock.cli.showing import moment
from penstock.cli.target import find_store, refuse_missing, store_path
from penstock.errors import BadUrl

if TYPE_CHECKING:
    from penstock.storage.keyvalue.repair import Loss

__all__ = ["repair"]


@click.command
@click.option(
    "--accept-loss", is_flag=True, help="Continue without the missing data. Cannot be undone."
)
@store_options
def repair(accept_loss: bool) -> None:
    """Report what is missing from a store in a folder that refuses to open.

    Without --accept-loss nothing is changed, and the exit code is 9 if data is missing. With it
    the store keeps everything up to the first missing commit and opens again; copy the folder
    first. Stop the server before you run it.

    \b
    Examples:
      penstock repair --store rocksdb:///var/lib/penstock
      penstock repair --store rocksdb:///var/lib/penstock --accept-loss
    """
    target = find_store()
    path = store_path(target)
    if path is None:
        raise BadUrl("Only a store in a folder, rocksdb:///path, can be repaired.", field="store")
    refuse_missing(target)
    run(_repair(path, target.store, accept_loss))


async def _repair(path: Path, store: str, accept: bool) -> None:
    # Imports RocksDB and the whole engine.
    from penstock.storage.contract import EngineOptions  # noqa: PLC0415
    from penstock.storage.keyvalue.repair import accept_loss, examine  # noqa: PLC0415

    if accept:
        loss = await accept_loss(path, EngineOptions())
    else:
        loss = await asyncio.to_thread(examine, path)
    if choices().json:
        printing.document({"store": store, "loss": loss})
    elif loss is None:
        click.echo(f"{store} opens: nothing is known to be missing")
    else:
        for line in _lines(store, loss):
            click.echo(line)
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
