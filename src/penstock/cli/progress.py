"""Progress bars for long operations: on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Meter", "meter"]


class Meter(Protocol):
    """Receives progress."""

    def advance(self, count: int) -> None:
        """``count`` more are done."""
        ...

    def reach(self, done: int, total: int | None = None) -> None:
        """``done`` are done, of ``total`` if that is known."""
        ...

    def name(self, label: str) -> None:
        """Set the label of the current activity."""
        ...


class _Silent:
    """Draws nothing, because stderr is not a terminal."""

    def advance(self, count: int) -> None:
        """Do nothing."""

    def reach(self, done: int, total: int | None = None) -> None:
        """Do nothing."""

    def name(self, label: str) -> None:
        """Do nothing."""


class _Bar:
    """A bar of rich."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, count: int) -> None:
        """Move the bar forward."""
        self._progress.advance(self._task, count)

    def reach(self, done: int, total: int | None = None) -> None:
        """Move the bar to a position."""
        self._progress.update(self._task, completed=done, total=total)

    def name(self, label: str) -> None:
        """Change the label."""
        self._progress.update(self._task, description=label)


@contextmanager
def meter(label: str, total: int | None = None) -> Iterator[Meter]:
    """Show a bar while the block runs; without a total it only shows activity."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    # Slow to import, so only if there is a terminal.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Transient: the command's final output has the same information.
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress, progress.add_task(label, total=total))
