"""Progress bars for long operations: on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

__all__ = ["Meter", "meter"]


class Meter(Protocol):
    """Receives progress; omitted values do not change."""

    def __call__(
        self,
        *,
        description: str | None = None,
        completed: int | None = None,
        total: int | None = None,
        advance: int | None = None,
    ) -> None:
        """Show the progress."""


@contextmanager
def meter(label: str, total: int | None = None) -> Iterator[Meter]:
    """Show a bar while the block runs; without a total it only shows activity."""
    if not sys.stderr.isatty():
        yield lambda **_: None
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
        yield partial(progress.update, progress.add_task(label, total=total))
