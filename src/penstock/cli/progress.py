"""Progress bars: on stderr, on a terminal only, for anything that may take a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Meter", "meter"]


class Meter(Protocol):
    """Told how far something has come."""

    def advance(self, count: int) -> None:
        """``count`` more are done."""
        ...

    def reach(self, done: int, total: int | None = None) -> None:
        """``done`` are done, of ``total`` where that is known by now."""
        ...

    def name(self, label: str) -> None:
        """Something else is being done now."""
        ...


class _Silent:
    """Stderr is not a terminal: nothing is drawn."""

    def advance(self, count: int) -> None:
        """Say nothing."""

    def reach(self, done: int, total: int | None = None) -> None:
        """Say nothing."""

    def name(self, label: str) -> None:
        """Say nothing."""


class _Bar:
    """One bar of rich's."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, count: int) -> None:
        """Move the bar on."""
        self._progress.advance(self._task, count)

    def reach(self, done: int, total: int | None = None) -> None:
        """Move the bar to where it belongs."""
        self._progress.update(self._task, completed=done, total=total)

    def name(self, label: str) -> None:
        """Write another label."""
        self._progress.update(self._task, description=label)


@contextmanager
def meter(label: str, total: int | None = None) -> Iterator[Meter]:
    """A bar for as long as the block runs; without a total it only shows that it lives."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    # Imported when there is a terminal to draw on: it takes a while.
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
    # Transient: what a command prints at its end says the same and stays.
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress, progress.add_task(label, total=total))
