"""Confirmation before something is removed permanently."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

__all__ = ["confirm"]


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
