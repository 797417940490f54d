"""Exit codes, and the errors that each stands for.

The code alone lets a script decide whether to correct the call, to wait or to check the
server. docs/command-line.md has the same table.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.errors import (
    AccessError,
    BadInput,
    Busy,
    Conflict,
    MissingExtra,
    NotFound,
    PenstockError,
    PipelineError,
    QueueFull,
    ServiceError,
    SourceChanged,
    StoreError,
    StoreNotEmpty,
    TaskError,
)

__all__ = ["Exit", "exit_of"]


class Exit(IntEnum):
    """The exit codes of commands."""

    OK = 0
    UNEXPECTED = 1
    """A bug, or an unforeseen failure of the machine."""
    USAGE = 2
    """The command line itself does not parse."""
    BAD_INPUT = 3
    NOT_FOUND = 4
    CONFLICT = 5
    RETRY_LATER = 6
    """A queue is full, or the server is at one of its limits."""
    UNAVAILABLE = 7
    """The server does not answer, the store cannot be opened or written, or an extra is missing."""
    NO_ACCESS = 8
    VIOLATIONS = 9
    """``penstock verify`` or ``simulate`` found broken laws."""
    INTERRUPTED = 130
    """Ctrl-C: 128 plus the signal's number, as in shells."""
    BROKEN_PIPE = 141
    """The reader of the output is gone."""
    TERMINATED = 143


#: The first class that matches decides, so subclasses come first.
_FAMILIES: Final = (
    (BadInput, Exit.BAD_INPUT),
    (NotFound, Exit.NOT_FOUND),
    ((Conflict, SourceChanged, StoreNotEmpty), Exit.CONFLICT),
    ((QueueFull, Busy), Exit.RETRY_LATER),
    (AccessError, Exit.NO_ACCESS),
    ((MissingExtra, ServiceError, PipelineError, StoreError, TaskError), Exit.UNAVAILABLE),
)


def exit_of(error: PenstockError) -> Exit:
    """The exit code of a command that failed with this error."""
    return next((code for kinds, code in _FAMILIES if isinstance(error, kinds)), Exit.UNEXPECTED)
