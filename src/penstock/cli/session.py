"""Gives a command the verbs of its server or store, open for as long as the command runs.

A command is a coroutine whose first argument is the verbs. Ctrl-C and SIGTERM cancel it, so that
its ``finally`` blocks run (release a claim, close a store) before the process ends.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from penstock.cli.exits import Exit
from penstock.cli.target import Target, find_target, refuse_missing
from penstock.verbs import Verbs

if TYPE_CHECKING:
    from penstock.broker import Broker

__all__ = ["creating", "lasting", "on_target", "open_store", "open_target", "run"]

P = ParamSpec("P")
T = TypeVar("T")

#: How long to retry a server that does not answer. A person wants an answer soon; a command that
#: runs for long waits for the server to restart.
_SOON_MS: Final = 2_000
_PATIENT_MS: Final = 30_000


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; SIGTERM cancels it as Ctrl-C does."""
    return asyncio.run(_cancelled_by_sigterm(work))


def on_target(
    command: Callable[Concatenate[Verbs, P], Awaitable[None]],
) -> Callable[P, None]:
    """Give a command the verbs of the server or the store that the options name."""
    return _bound(command, may_create=False, patient=False)


def creating(
    command: Callable[Concatenate[Verbs, P], Awaitable[None]],
) -> Callable[P, None]:
    """Like ``on_target``, for commands that may create the store."""
    return _bound(command, may_create=True, patient=False)


def lasting(
    command: Callable[Concatenate[Verbs, P], Awaitable[None]],
) -> Callable[P, None]:
    """Like ``on_target``, for commands that may run for long."""
    return _bound(command, may_create=False, patient=True)


def _bound(
    command: Callable[Concatenate[Verbs, P], Awaitable[None]],
    *,
    may_create: bool,
    patient: bool,
) -> Callable[P, None]:
    @wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        target = find_target()
        if not may_create:
            refuse_missing(target)

        async def work() -> None:
            async with open_target(target, patient=patient) as q:
                await command(q, *args, **kwargs)

        run(work())

    return call


@asynccontextmanager
async def open_target(target: Target, *, patient: bool = False) -> AsyncIterator[Verbs]:
    """The verbs of a server or a store; ``patient`` waits for a server to restart."""
    if target.url is None:
        async with open_store(target) as local:
            yield local
    else:
        # Slow to import, and not needed for `--help`.
        from penstock.client import ClientOptions, connect  # noqa: PLC0415

        options = ClientOptions(retry_ms=_PATIENT_MS if patient else _SOON_MS)
        async with connect(target.url, credential=target.credential, options=options) as remote:
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
