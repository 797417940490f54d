"""The trail of a delivery: its transitions other than grants and the last ack.

Grants are in the attempts record and the ack is in the done record, so a typical delivery (publish,
claim, ack) has no trail. The rarer transitions are written here: nack, release, lapse, reject,
exhaust, expire, replay, with the error (D1).

The record begins with two numbers: how many grants since the last replay were released (they do not
count against max_attempts, C2), and the highest grant before the last replay (an older receipt can
no longer repeat its ack, S1).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.model.limits import MAX_ATTEMPTS, MAX_HISTORY_EVENTS
from penstock.model.states import State, Transition
from penstock.storage.keyvalue.encoding import Reader, pack_utf8, seal, unseal

__all__ = ["Mark", "Trail"]

_HEAD = struct.Struct("<HQH")
_MARK = struct.Struct("<qBB")
_NO_STATE: Final = 255
#: Set in the transition byte of a mark that was made in the dead-letter queue.
_DEAD: Final = 0x80

_TRANSITIONS: Final = tuple(Transition)
_STATES: Final = tuple(State)


class Mark(Struct, frozen=True):
    """One transition."""

    at: int
    transition: Transition
    state: State | None
    error: str | None
    dead: bool = False
    """Whether it was in the dead-letter queue; for a replay, whether it led into it."""

    @property
    def clears_error(self) -> bool:
        """Whether it resets the error: a replay into the queue does, into the dead letters not."""
        return self.transition is Transition.REPLAY and not self.dead


class Trail(Struct, frozen=True):
    """The rarer transitions of a delivery."""

    released: int = 0
    replayed_grant: int = 0
    marks: tuple[Mark, ...] = ()

    @property
    def last_error(self) -> str | None:
        """The last reported error since a replay that cleared it."""
        mark = _last_error(self.marks)
        return None if mark is None else mark.error

    def then(
        self,
        at: int,
        transition: Transition,
        state: State | None,
        error: str | None,
        grant: int,
        *,
        dead: bool = False,
    ) -> Trail:
        """The trail with one more transition; ``grant`` is the queue's highest so far."""
        released, replayed_grant = self.released, self.replayed_grant
        if transition is Transition.RELEASE:
            released = min(released + 1, MAX_ATTEMPTS)
        elif transition is Transition.REPLAY:
            released, replayed_grant = 0, grant
        marks = (*self.marks, Mark(at, transition, state, error, dead))
        return Trail(released, replayed_grant, _newest(marks))

    def encode(self) -> bytes:
        parts = [_HEAD.pack(self.released, self.replayed_grant, len(self.marks))]
        for mark in self.marks:
            state = _NO_STATE if mark.state is None else _STATES.index(mark.state)
            transition = _TRANSITIONS.index(mark.transition) | (_DEAD if mark.dead else 0)
            parts.append(_MARK.pack(mark.at, transition, state))
            parts.append(b"\x00" if mark.error is None else b"\x01" + pack_utf8(mark.error))
        return seal(b"".join(parts))

    @staticmethod
    def decode(value: bytes | None) -> Trail:
        if value is None:
            return _EMPTY
        reader = Reader(unseal(value, "trail"), "trail")
        released, replayed_grant, count = reader.u16(), reader.u64(), reader.u16()
        marks = []
        for _ in range(count):
            at, transition, state = reader.i64(), reader.u8(), reader.u8()
            marks.append(
                Mark(
                    at,
                    _TRANSITIONS[transition & ~_DEAD],
                    None if state == _NO_STATE else _STATES[state],
                    reader.utf8() if reader.u8() else None,
                    bool(transition & _DEAD),
                )
            )
        reader.finish()
        return Trail(released, replayed_grant, tuple(marks))


_EMPTY = Trail()


def _last_error(marks: Sequence[Mark]) -> Mark | None:
    """The mark with the error that is shown with the delivery."""
    for mark in reversed(marks):
        if mark.clears_error:
            return None
        if mark.error is not None:
            return mark
    return None


def _newest(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """As many marks as a history shows, preceded by the one with the last error."""
    if len(marks) <= MAX_HISTORY_EVENTS:
        return marks
    kept = marks[-MAX_HISTORY_EVENTS:]
    error = _last_error(marks)
    return kept if error is None or error in kept else (error, *kept)
