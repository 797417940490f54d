"""A hold: a consumer's record of one claim that it has not settled yet.

``Lease`` is the program's view of it. The two are separate so that a forgotten lease is
noticed: the hold outlives it and is no longer extended, and the delivery comes back when the
claim lapses (C5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from penstock.errors import Conflict, StaleReceipt
from penstock.model.delivery import Delivery

__all__ = ["Fate", "Hold"]


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


class Hold:
    """One claim, from its grant to its end."""

    __slots__ = (
        "delivery",
        "fate",
        "settled_by",
        "lease_ms",
        "since",
        "wish_ms",
        "until",
        "_on_end",
        "_holder",
        "_holder_cancelling",
        "_is_cutting",
    )

    def __init__(
        self, delivery: Delivery, now: int = 0, on_end: Callable[[Hold], None] | None = None
    ) -> None:
        self.delivery = delivery
        self.fate = Fate.HELD
        self.settled_by = ""
        #: The granted lease, after the queue's policy has clamped it.
        self.lease_ms = max(1, delivery.lease_deadline - delivery.claimed_at)
        #: When the claim was granted or last extended, by the consumer's own clock.
        self.since = now
        #: The lease that the program asked for since the last extension, and until when it asked
        #: to hold the claim, by the consumer's own clock.
        self.wish_ms = 0
        self.until = 0
        self._on_end = on_end
        self._holder: asyncio.Task[object] | None = None
        self._holder_cancelling = 0
        self._is_cutting = False

    # -- settling ----------------------------------------------------------------------

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

    # -- the task that works under the claim -------------------------------------------

    def enter(self) -> None:
        """Register the current task; it is cancelled if the claim is lost."""
        self._holder = asyncio.current_task()
        self._holder_cancelling = 0 if self._holder is None else self._holder.cancelling()

    def leave(self, error: BaseException | None) -> bool:
        """Unregister the task; returns whether only the loss of the claim cancelled it.

        The bookkeeping is that of ``asyncio.timeout``: a cancellation that also came from
        elsewhere must not be swallowed.
        """
        holder, self._holder = self._holder, None
        if not self._is_cutting or holder is None:
            return False
        self._is_cutting = False
        left = holder.uncancel()
        return left <= self._holder_cancelling and isinstance(error, asyncio.CancelledError)

    def lose(self) -> None:
        """Mark the claim as lost and cancel its task: the receipt is stale."""
        if self.fate is not Fate.HELD:
            return
        self.end(Fate.LOST)
        if self._holder is not None:
            self._is_cutting = True
            self._holder.cancel()

    def __str__(self) -> str:
        return f"Message {self.delivery.message.id} of queue {self.delivery.queue!r}"
