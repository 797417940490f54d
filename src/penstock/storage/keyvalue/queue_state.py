"""The record of a queue's state: its cursor and its counts."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from penstock.storage.keyvalue.encoding import seal, unseal

__all__ = ["decode_state", "encode_state"]

_CAUGHT_UP: Final = -1
# cursor, delayed, available, in_flight, done, expired, grants, acks, nacks, failures,
# epoch, last grant, replays, dead-letter queue paused
_STATE: Final = struct.Struct("<qQQQQQQQQQQQQB")


def encode_state(cursor: int | None, numbers: Sequence[int], *, paused: bool) -> bytes:
    """The record of a queue's state; ``numbers`` in the order of docs/formats.md."""
    return seal(_STATE.pack(_CAUGHT_UP if cursor is None else cursor, *numbers, paused))


def decode_state(value: bytes) -> tuple[int | None, Sequence[int], bool]:
    """The cursor, the numbers, and whether the queue is paused by itself."""
    cursor, *numbers, paused = _STATE.unpack(unseal(value, "queue state"))
    return None if cursor == _CAUGHT_UP else cursor, numbers, bool(paused)
