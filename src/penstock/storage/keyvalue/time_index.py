"""An index by time: records keyed by a time and a claim id, earliest first.

The earliest records are constantly removed, so a scan from the beginning would have to skip their
tombstones. No record is below the *floor*, so scans begin there.
"""

from __future__ import annotations

from penstock.storage.keyvalue.encoding import prefix_end
from penstock.storage.keyvalue.stage import Stage

__all__ = ["TimeIndex"]


class TimeIndex:
    """The records under one prefix; ``QueueKeys`` makes the keys."""

    __slots__ = ("_floor", "_prefix", "_stage")

    def __init__(self, stage: Stage, prefix: bytes) -> None:
        self._stage = stage
        self._prefix = prefix
        self._floor = prefix

    def put(self, key: bytes, value: bytes) -> None:
        self._floor = min(self._floor, key)
        self._stage.writes[key] = value

    def up_to(self, now: int, limit: int) -> list[tuple[int, int, bytes]]:
        """(time, claim id, value) of records up to ``now``, earliest first."""
        end = self._prefix + (now + 1).to_bytes(8, "big")
        out = []
        for key, value in self._stage.scan(self._floor, end):
            out.append((_time_of(key), int.from_bytes(key[-8:], "big"), value))
            if len(out) == limit:
                break
        return out

    def first(self) -> int | None:
        """The earliest time, or None."""
        for key, _ in self._stage.scan(self._floor, prefix_end(self._prefix)):
            self._floor = key
            return _time_of(key)
        return None


def _time_of(key: bytes) -> int:
    return int.from_bytes(key[-16:-8], "big")
