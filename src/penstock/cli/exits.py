"""Exit codes, and which error ends with which.

A script decides by the code alone whether to correct the call, to wait or to look at the
server. The table in docs/command-line.md is this module's.
"""

from __future__ import annotations

from enum import IntEnum

from penstock.errors import (
    AccessError,
    BadInput,
    Busy,
    Conflict,
    NotFound,
    PenstockError,
    PipelineError,
    QueueFull,
    ServiceError,
    StoreError,
)

__all__ = ["Exit", "exit_of"]


class Exit(IntEnum):
    """What the end of a command means."""

    OK = 0
    UNEXPECTED = 1
    """A bug, or something of the machine that nobody foresaw."""
    USAGE = 2
    """The command line itself does not parse."""
    BAD_INPUT = 3
    NOT_FOUND = 4
    CONFLICT = 5
    RETRY_LATER = 6
    """A queue is full, or the server is at one of its bounds."""
    UNAVAILABLE = 7
    """The server does not answer, or the store cannot be opened or written."""
    NO_ACCESS = 8
    VIOLATIONS = 9
    """``penstock verify`` or ``simulate`` found what the laws do not allow."""
    INTERRUPTED = 130
    """Ctrl-C: 128 and the signal's number, as shells count."""
    BROKEN_PIPE = 141
    """Whoever read the output has left."""
    TERMINATED = 143


#: The first class that fits decides, so the narrower one stands above the wider.
_FAMILIES: tuple[tuple[type[PenstockError], Exit], ...] = (
    (BadInput, Exit.BAD_INPUT),
    (NotFound, Exit.NOT_FOUND),
    (Conflict, Exit.CONFLICT),
    (QueueFull, Exit.RETRY_LATER),
    (Busy, Exit.RETRY_LATER),
    (AccessError, Exit.NO_ACCESS),
    (ServiceError, Exit.UNAVAILABLE),
    (PipelineError, Exit.UNAVAILABLE),
    (StoreError, Exit.UNAVAILABLE),
)


def exit_of(error: PenstockError) -> Exit:
    """The code that a command ends with when this error ended it."""
    for family, code in _FAMILIES:
        if isinstance(error, family):
            return code
    return Exit.UNEXPECTED
