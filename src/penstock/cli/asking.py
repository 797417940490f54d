"""Asking before something is removed for good."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

__all__ = ["confirm"]


def confirm(question: str, yes: bool) -> None:
    """Go on if the person says so, or has said so with ``--yes``; nobody to ask is a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is nobody to ask: give --yes.")
    with _plain_signals():
        click.confirm(question, abort=True, err=True)


@contextmanager
def _plain_signals() -> Iterator[None]:
    """Let signals end the program while it waits for an answer.

    The event loop takes them otherwise, and it stands still until somebody answers.
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
