"""The server or store that a command uses, open for as long as the command runs.

``--store`` opens a store in this process; without it commands talk to the server of the setting
``url``, or of a context. The setting ``store`` alone does not make a command open that store: the
server has it open.

A command is a coroutine whose first argument is the verbs. Ctrl-C and SIGTERM cancel it, so that
its ``finally`` blocks run (release a claim, close a store) before the process ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import click
from msgspec import Struct

from penstock.api import QueueApi
from penstock.cli.exits import Exit
from penstock.cli.options import choices, target_options
from penstock.cli.printing import note
from penstock.errors import BadInput, StoreUnavailable
from penstock.model.secrets import mask_password
from penstock.settings import Loaded, load_settings
from penstock.settings.contexts import ServerContext, contexts_path, read_contexts
from penstock.settings.loading import (
    CA_VARIABLE,
    CERT_KEY_VARIABLE,
    CERT_VARIABLE,
    CONTEXT_VARIABLE,
)

if TYPE_CHECKING:
    from penstock.broker import Broker, BrokerOptions

__all__ = [
    "SOON_MS",
    "Target",
    "TlsFiles",
    "bound",
    "confirm",
    "creating",
    "find_target",
    "lasting",
    "on_target",
    "open_store",
    "open_target",
    "refuse_missing",
    "run",
    "settings",
    "store_path",
    "tls_files",
]

T = TypeVar("T")
Command: TypeAlias = Callable[..., Awaitable[None]]

#: How long to retry a server that does not answer. A person wants an answer soon; a command that
#: runs for long waits for the server to restart.
SOON_MS: Final = 2_000
_PATIENT_MS: Final = 30_000


# -- the server or store -------------------------------------------------------------------


class TlsFiles(Struct, frozen=True):
    """The certificates for an https server; those that are None are the system's."""

    ca: str | None
    cert: str | None
    cert_key: str | None


class Target(Struct, frozen=True, kw_only=True):
    """A server; a store if ``url`` is None."""

    url: str | None
    store: str
    tenant: str
    credential: str | None
    options: BrokerOptions
    tls: TlsFiles


def settings(*, contexts: bool = True, **flags: object) -> Loaded:
    """The effective settings, including the shared options and ``flags`` of a command.

    Without ``contexts`` the command is about no other server, and ignores them.
    """
    kept = choices()
    names = ("url", "store", "tenant", "credential", "credential_file")
    given = {name: getattr(kept, name) for name in names}
    # A flag of the command overrides the shared option of the same name.
    given |= {name: value for name, value in flags.items() if value is not None}
    config = None if kept.config is None else Path(kept.config)
    load = partial(load_settings, given, os.environ, config, Path.cwd())
    loaded = load()
    context = _find_context(loaded) if contexts and kept.store is None else None
    if context is not None:
        loaded = load(context)
    # Print each warning once per command, however often it reads its settings.
    shown = click.get_current_context().find_root().meta.setdefault("penstock.warned", set())
    for warning in loaded.warnings:
        if warning not in shown:
            shown.add(warning)
            note(f"warning: {warning}")
    return loaded


def _find_context(loaded: Loaded) -> tuple[str, ServerContext] | None:
    """The context that decides about the server, and its name; None if the settings do."""
    named, kind = choices().context, loaded.sources["url"].kind
    if named is None and kind in ("flag", "environment"):
        return None
    known = read_contexts(contexts_path(os.environ))
    variable = os.environ.get(CONTEXT_VARIABLE, "").strip()
    if named is not None:
        return named, known.get(named, "flag --context")
    if variable:
        return variable, known.get(variable, f"environment {CONTEXT_VARIABLE}")
    if kind == "file" or known.current is None:
        return None
    return known.current, known.get(known.current, "in use")


def tls_files(loaded: Loaded | None) -> TlsFiles:
    """The certificates of the shared options, or else those of the context or the environment.

    Without settings, only those of the options.
    """
    kept = choices()
    if loaded is None:
        return TlsFiles(kept.ca, kept.cert, kept.cert_key)
    usual = loaded.context or _tls_of_environment(loaded.settings.url)
    given = usual if kept.cert is None else kept
    return TlsFiles(kept.ca or usual.ca, given.cert, given.cert_key)


def _tls_of_environment(url: str) -> TlsFiles:
    # A server without TLS needs no files, and refuses them.
    if not url.startswith("https:"):
        return TlsFiles(None, None, None)
    names = (CA_VARIABLE, CERT_VARIABLE, CERT_KEY_VARIABLE)
    return TlsFiles(*(os.environ.get(name, "").strip() or None for name in names))


def find_target(*, store_only: bool = False) -> Target:
    """The server, or the store of ``--store``; with ``store_only`` the store of the settings."""
    # The broker imports the filter parser, which is slow to load.
    from penstock.broker import BrokerOptions  # noqa: PLC0415
    from penstock.storage.contract import EngineOptions  # noqa: PLC0415

    loaded = settings(contexts=not store_only)
    found, tls = loaded.settings, tls_files(loaded)
    url = None if store_only or choices().store is not None else found.url
    if url is not None and choices().tenant is not None:
        raise BadInput(
            "--tenant is for --store: a server gets the tenant from the credential.",
            field="tenant",
        )
    engine = EngineOptions(
        limits=found.limits,
        auto_create=found.auto_create,
        archive=found.archive,
        default_policy=found.queue_defaults,
    )
    return Target(
        url=url,
        store=found.store,
        tenant=found.tenant,
        credential=found.credential,
        options=BrokerOptions(
            engine=engine,
            require_topics=found.require_topics,
            routing=found.routing,
            webhooks=found.webhooks,
        ),
        tls=tls,
    )


def refuse_missing(target: Target) -> None:
    """Raise if the store does not exist: opening it would create it, and reading must not."""
    path = store_path(target)
    missing = path is not None and not path.exists()
    if target.url is None and target.store.startswith("slatedb+"):
        # Slow to import.
        from penstock.storage.keyvalue.opening import store_exists  # noqa: PLC0415

        missing = not store_exists(urlsplit(target.store))
    if missing:
        store = mask_password(target.store)
        raise StoreUnavailable(f"There is no store at {store}.", field="store")


def store_path(target: Target) -> Path | None:
    """The folder of the store; None for a server, a database, or a URL without a folder."""
    try:
        parts = urlsplit(target.store)
    except ValueError:
        # Opening the store will report the error.
        return None
    if target.url is not None or parts.scheme not in ("files", "rocksdb") or not parts.path:
        return None
    return Path(unquote(parts.path))


# -- commands on it ------------------------------------------------------------------------


def on_target(command: Command) -> Callable[..., None]:
    """Give a command the verbs of the server or the store, and the options that name it."""
    return bound(command, open_target)


def creating(command: Command) -> Callable[..., None]:
    """Like ``on_target``, for commands that may create the store."""
    return bound(command, open_target, may_create=True)


def lasting(command: Command) -> Callable[..., None]:
    """Like ``on_target``, for commands that may run for long."""
    return bound(command, partial(open_target, patient=True))


def bound(
    command: Command,
    opener: Callable[[Target], AbstractAsyncContextManager[object]],
    *,
    may_create: bool = False,
) -> Callable[..., None]:
    """Run a command with what ``opener`` opens as its first argument."""

    @target_options
    @wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        target = find_target()
        if not may_create:
            refuse_missing(target)

        async def work() -> None:
            async with opener(target) as opened:
                await command(opened, *args, **kwargs)

        run(work())

    return call


@asynccontextmanager
async def open_target(target: Target, *, patient: bool = False) -> AsyncIterator[QueueApi]:
    """The verbs of a server or a store; ``patient`` waits for a server to restart."""
    if target.url is None:
        async with open_store(target) as local:
            yield local
    else:
        # Slow to import, and not needed for `--help`.
        from penstock.client import ClientOptions, connect  # noqa: PLC0415

        options = ClientOptions(retry_ms=_PATIENT_MS if patient else SOON_MS)
        async with connect(
            target.url,
            credential=target.credential,
            ca=target.tls.ca,
            cert=target.tls.cert,
            key=target.tls.cert_key,
            options=options,
        ) as remote:
            yield remote


@asynccontextmanager
async def open_store(target: Target) -> AsyncIterator[Broker]:
    """Open the store in this process, with access to its engine."""
    from penstock import opening  # noqa: PLC0415

    # Without keepers: a command ends before they would do anything.
    async with opening.open(
        target.store, tenant=target.tenant, options=target.options, keepers=False
    ) as broker:
        yield broker


# -- signals -------------------------------------------------------------------------------


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; SIGTERM cancels it as Ctrl-C does."""
    return asyncio.run(_cancelled_by_sigterm(work))


async def _cancelled_by_sigterm(work: Coroutine[Any, Any, T]) -> T:
    if threading.current_thread() is not threading.main_thread():
        return await work
    task = asyncio.current_task()
    assert task is not None
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await work
    except asyncio.CancelledError:
        if terminated:
            raise click.exceptions.Exit(Exit.TERMINATED) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation unless ``--yes`` was given; without a terminal it is an error."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} The input is not a terminal: use --yes.")
    with _plain_signals():
        click.confirm(question, abort=True, err=True)


@contextmanager
def _plain_signals() -> Iterator[None]:
    """Let signals end the program while it waits for an answer.

    The event loop handles them otherwise, and it is blocked until the user answers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
