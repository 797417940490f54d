"""A hold: a consumer's record of one claim that it has not settled yet.

``Lease`` is the program's view of it. The two are separate so that a forgotten lease is
noticed: the hold outlives it and is no longer extended, and the delivery comes back when the
claim lapses (C5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, auto

from penstock.errors import Conflict, StaleReceipt
from penstock.model.delivery import Delivery

__all__ = ["Fate", "Hold", "Work"]


class Fate(Enum):
    """The state of a hold."""

    HELD = auto()
    SETTLING = auto()
    """A settlement is in progress, and its outcome unknown."""
    SETTLED = auto()
    LOST = auto()
    """The receipt is stale: another consumer may have the delivery (S1)."""
    DROPPED = auto()
    """Not settled, and given up: the delivery comes back when the claim lapses."""


class Work:
    """The current task, as it works under one claim or several.

    It is cancelled when a claim is lost and none of the others is held any more.

    The bookkeeping is that of ``asyncio.timeout``: a cancellation that also came from elsewhere
    must not be swallowed.
    """

    __slots__ = ("_cancelling", "_holds", "_is_cut", "_task")

    def __init__(self, holds: Sequence[Hold]) -> None:
        self._holds = holds
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._is_cut = False

    def lost_one(self) -> None:
        """Cancel the task if no claim is left: one was lost."""
        if self._task is None or any(hold.fate is Fate.HELD for hold in self._holds):
            return
        self._is_cut = True
        self._task.cancel()

    def end(self, error: BaseException | None) -> bool:
        """End the work; returns whether only the loss of its claims cancelled it."""
        task, self._task = self._task, None
        if not self._is_cut or task is None:
            return False
        left = task.uncancel()
        return left <= self._cancelling and isinstance(error, asyncio.CancelledError)


class Hold:
    """One claim, from its grant to its end."""

    __slots__ = ("delivery", "fate", "settled_by", "since", "wish_ms", "until", "work", "_on_end")

    def __init__(
        self, delivery: Delivery, now: int = 0, on_end: Callable[[Hold], None] | None = None
    ) -> None:
        self.delivery = delivery
        self.fate = Fate.HELD
        self.settled_by = ""
        #: When the claim was granted or last extended, by the consumer's own clock.
        self.since = now
        #: The lease that the program asked for since the last extension, and until when it asked
        #: to hold the claim, by the consumer's own clock.
        self.wish_ms = 0
        self.until = 0
        #: The task that works under the claim.
        self.work: Work | None = None
        self._on_end = on_end

    @property
    def lease_ms(self) -> int:
        """The granted lease, after the queue's policy has clamped it."""
        return max(1, self.delivery.lease_deadline - self.delivery.claimed_at)

    def check(self) -> None:
        """Refuse to settle a claim that is no longer held."""
        match self.fate:
            case Fate.HELD:
                return
            case Fate.LOST:
                raise StaleReceipt(f"The claim of {self} was lost.", field="receipt")
            case Fate.SETTLED:
                raise Conflict(f"{self} was settled already ({self.settled_by}).", field="receipt")
            case Fate.SETTLING:
                raise Conflict(f"{self} is being settled ({self.settled_by}).", field="receipt")
            case Fate.DROPPED:
                raise Conflict(f"{self} was given up.", field="receipt")

    def begin(self, verb: str) -> None:
        """Begin a settlement; there is one at a time."""
        if self.fate is not Fate.HELD:
            self.check()
        self.fate = Fate.SETTLING
        self.settled_by = verb

    def undo(self) -> None:
        """Undo ``begin``: the settlement was refused and the claim is unchanged."""
        self.fate = Fate.HELD

    def end(self, fate: Fate) -> None:
        """End the claim for this consumer."""
        self.fate = fate
        if self._on_end is not None:
            self._on_end(self)

    def lose(self) -> None:
        """Mark the claim as lost: the receipt is stale. Its task may be cancelled."""
        if self.fate is not Fate.HELD:
            return
        self.end(Fate.LOST)
        if self.work is not None:
            self.work.lost_one()

    def __str__(self) -> str:
        return f"Message {self.delivery.message.id} of queue {self.delivery.queue!r}"
