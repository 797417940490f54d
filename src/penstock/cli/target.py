"""Which server or store a command works on, by the options and the settings.

``--store`` opens a store in this process; without it commands talk to the server that the
setting ``url`` names. The setting ``store`` alone does not send a command there: it is what the
server has open.
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
    """A server, or where ``url`` is None a store."""

    url: str | None
    store: str
    tenant: str
    credential: str | None
    options: BrokerOptions


def settings(**flags: object) -> Loaded:
    """The settings that are in force, with the shared options and ``flags`` of a command."""
    kept = choices()
    shared = {
        "url": kept.url,
        "store": kept.store,
        "tenant": kept.tenant,
        "credential": kept.credential,
        "credential_file": kept.credential_file,
    }
    # A flag of the command stands after the shared one of the same name, and counts if given.
    given = {name: value for name, value in flags.items() if value is not None}
    config = None if kept.config is None else Path(kept.config)
    loaded = load_settings({**shared, **given}, os.environ, config, Path.cwd())
    _warn(loaded.warnings)
    return loaded


def _warn(warnings: tuple[str, ...]) -> None:
    """Show each warning on stderr, once for a command however often it reads its settings."""
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
    """The store of ``--store`` or of the settings, for what no server can be asked."""
    found = settings().settings
    return Target(
        url=None,
        store=found.store,
        tenant=found.tenant,
        credential=None,
        options=broker_options(found),
    )


def broker_options(found: Settings) -> BrokerOptions:
    """What the settings mean for a store that is opened in this process."""
    # The broker brings the parser of filters with it, which takes a while to load.
    from penstock.broker import BrokerOptions  # noqa: PLC0415
    from penstock.storage.contract import EngineOptions  # noqa: PLC0415

    engine = EngineOptions(
        limits=found.limits, auto_create=found.auto_create, archive=found.archive
    )
    return BrokerOptions(engine=engine, require_topics=found.require_topics)


def refuse_missing(target: Target) -> None:
    """Opening a store creates it; a command that only looks should not."""
    path = store_path(target)
    if path is not None and not path.exists():
        raise StoreUnavailable(f"There is no store at {target.store}.", field="store")


def store_path(target: Target) -> Path | None:
    """The folder of the store; None for a server, a database, and a URL that names no folder."""
    try:
        parts = urlsplit(target.store)
    except ValueError:
        # Whoever opens it says what is wrong with it.
        return None
    if target.url is not None or parts.scheme != "rocksdb" or not parts.path:
        return None
    return Path(unquote(parts.path))
