"""``penstock key``: create, list and revoke API keys.

On a server this needs an admin's credential. On a store it is direct, which is how to create the
first key of a server with ``--auth`` before it starts.
"""

from __future__ import annotations

import click

from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.family import Family
from penstock.cli.keyring import opened_keyring
from penstock.cli.options import choices, target_options
from penstock.cli.printing import Column
from penstock.cli.session import run
from penstock.cli.showing import moment
from penstock.model.clock import SystemClock

__all__ = ["key"]


@click.group(cls=Family)
def key() -> None:
    """Create, list and revoke API keys.

    A grant is an action and a pattern of names: publish:orders-*, consume:billing, admin:*.

    \b
    Examples:
      penstock key create --grant admin:* --store rocksdb:///var/lib/penstock
      penstock key create --grant publish:orders --name shop --url https://queue.example.org
    """


@key.command
@click.option("--grant", "grants", multiple=True, required=True, help="A grant; may be repeated.")
@click.option("--name", default="", help="A name for people.")
@click.option("--expires", "expires_ms", type=DURATION, help="Expire after this time: 90d.")
@target_options
def create(grants: tuple[str, ...], name: str, expires_ms: int | None) -> None:
    """Create a key and print it. It is shown once and stored as a hash.

    \b
    Examples:
      penstock key create --grant publish:orders-* --grant consume:billing --name shop
      export PENSTOCK_CREDENTIAL=$(penstock key create --grant admin:*)
    """

    async def work() -> None:
        expires_at = None if expires_ms is None else SystemClock().now() + expires_ms
        async with opened_keyring(may_create=True) as keys:
            made = await keys.create(grants, name=name, expires_at=expires_at)
        if choices().json:
            printing.document(made)
            return
        click.echo(made.key)
        printing.note(
            f"key {made.info.id} ({made.info.name}) of tenant {made.info.tenant}: "
            f"{', '.join(made.info.grants)}. It is not shown again."
        )

    run(work())


@key.command(name="list")
@target_options
def list_keys() -> None:
    """List the tenant's keys, without their secrets.

    \b
    Example:
      penstock key list --json
    """

    async def work() -> None:
        async with opened_keyring() as keys:
            listed = await keys.list()
        if choices().json:
            printing.document(listed)
            return
        columns = (
            Column("id", style="bold"),
            Column("name"),
            Column("grants", wide=True),
            Column("created"),
            Column("expires"),
        )
        rows = [
            (
                info.id,
                info.name,
                " ".join(info.grants),
                moment(info.created_at),
                moment(info.expires_at) or "never",
            )
            for info in listed
        ]
        printing.table(columns, rows, "There are no keys.")

    run(work())


@key.command
@click.argument("key_id")
@target_options
def revoke(key_id: str) -> None:
    """Revoke a key. This server refuses it immediately.

    \b
    Example:
      penstock key revoke abcdefghijklmnop
    """

    async def work() -> None:
        async with opened_keyring() as keys:
            await keys.revoke(key_id)
        if choices().json:
            printing.document({"revoked": key_id})
        else:
            click.echo(f"revoked {key_id}")

    run(work())
