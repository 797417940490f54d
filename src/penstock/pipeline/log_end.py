"""The end of the log, compared with a position that was read from it before.

Servers on a database may disagree for a moment about how far the log is settled: one that has just
connected can report a lower end than an earlier answer. Only an end that stays below the position
means that entries were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.pipeline.remote import Remote

__all__ = ["PAUSES_S", "Pause", "find_log_end"]

#: Waits for so many seconds.
Pause: TypeAlias = Callable[[float], object]

#: The pauses before the end is read again. They outlast the publishes that were open.
PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)


def find_log_end(remote: Remote, position: int, pause: Pause) -> int:
    """Return the end of the log, read several times if it seems to be below ``position``."""
    end: int = remote.ask(lambda q: q.log_end())
    for seconds in PAUSES_S:
        if end >= position:
            break
        pause(seconds)
        end = max(end, remote.ask(lambda q: q.log_end()))
    return end
