"""The server or store that a command uses, from its options and the settings.

``--store`` opens a store in this process; without it commands talk to the server of the setting
``url``. The setting ``store`` alone does not make a command open that store: the server has it
open.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click
from msgspec import Struct

from penstock.cli.options import choices
from penstock.cli.printing import note
from penstock.errors import StoreUnavailable
from penstock.settings import Loaded, Settings, load_settings

if TYPE_CHECKING:
    from penstock.broker import BrokerOptions

__all__ = [
    "Target",
    "broker_options",
    "find_store",
    "find_target",
    "refuse_missing",
    "settings",
    "store_path",
]


class Target(Struct, frozen=True, kw_only=True):
    """A server; a store if ``url`` is None."""

    url: str | None
    store: str
    tenant: str
    credential: str | None
    options: BrokerOptions


def settings(**flags: object) -> Loaded:
    """The effective settings, including the shared options and ``flags`` of a command."""
    kept = choices()
    shared = {
        "url": kept.url,
        "store": kept.store,
        "tenant": kept.tenant,
        "credential": kept.credential,
        "credential_file": kept.credential_file,
    }
    # A flag of the command overrides the shared option of the same name.
    given = {name: value for name, value in flags.items() if value is not None}
    config = None if kept.config is None else Path(kept.config)
    loaded = load_settings({**shared, **given}, os.environ, config, Path.cwd())
    _warn(loaded.warnings)
    return loaded


def _warn(warnings: tuple[str, ...]) -> None:
    """Print each warning once per command, however often it reads its settings."""
    shown = click.get_current_context().find_root().meta.setdefault("penstock.warned", set())
    for warning in warnings:
        if warning not in shown:
            shown.add(warning)
            note(f"warning: {warning}")


def find_target() -> Target:
    """The server, or the store that ``--store`` names."""
    found = settings().settings
    direct = choices().store is not None
    return Target(
        url=None if direct else found.url,
        store=found.store,
        tenant=found.tenant,
        credential=found.credential,
        options=broker_options(found),
    )


def find_store() -> Target:
    """The store of ``--store`` or of the settings, for commands that no server supports."""
    found = settings().settings
    return Target(
        url=None,
        store=found.store,
        tenant=found.tenant,
        credential=None,
        options=broker_options(found),
    )


def broker_options(found: Settings) -> BrokerOptions:
    """The broker options for a store that is opened in this process."""
    # The broker imports the filter parser, which is slow to load.
    from penstock.broker import BrokerOptions  # noqa: PLC0415
    from penstock.storage.contract import EngineOptions  # noqa: PLC0415

    engine = EngineOptions(
        limits=found.limits, auto_create=found.auto_create, archive=found.archive
    )
    return BrokerOptions(engine=engine, require_topics=found.require_topics)


def refuse_missing(target: Target) -> None:
    """Raise if the store does not exist: opening it would create it, and reading must not."""
    path = store_path(target)
    if path is not None and not path.exists():
        raise StoreUnavailable(f"There is no store at {target.store}.", field="store")


def store_path(target: Target) -> Path | None:
    """The folder of the store; None for a server, a database, or a URL without a folder."""
    try:
        parts = urlsplit(target.store)
    except ValueError:
        # Opening the store will report the error.
        return None
    if target.url is not None or parts.scheme != "rocksdb" or not parts.path:
        return None
    return Path(unquote(parts.path))
