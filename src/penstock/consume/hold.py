"""A hold: what a consumer knows about one claim it has not settled yet.

``Lease`` is the same thing as a program sees it. They are two so that a lease which a program
forgets is noticed: the hold outlives it, is not extended any more, and the delivery comes
back when the claim lapses (C5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from penstock.errors import Conflict, StaleReceipt
from penstock.model.delivery import Delivery

__all__ = ["Fate", "Hold"]


class Fate(Enum):
    """Where a hold stands."""

    HELD = auto()
    SETTLING = auto()
    """A settlement is under way; nobody knows yet which way it goes."""
    SETTLED = auto()
    LOST = auto()
    """The receipt is stale: somebody else may have the delivery (S1)."""
    DROPPED = auto()
    """Not settled, and nobody is going to: it comes back when the claim lapses."""


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
        #: What was granted, after the queue's policy has clamped it.
        self.lease_ms = max(1, delivery.lease_deadline - delivery.claimed_at)
        #: When it was granted or last extended, by the consumer's own pace.
        self.since = now
        #: How long the program asked to hold it, if that was since the last extension, and
        #: until when that is, by the consumer's own pace.
        self.wish_ms = 0
        self.until = 0
        self._on_end = on_end
        self._holder: asyncio.Task[object] | None = None
        self._holder_cancelling = 0
        self._is_cutting = False

    # -- settling ----------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to settle what is not held any more."""
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
        """A settlement begins; there is one at a time."""
        self.check()
        self.fate = Fate.SETTLING
        self.settled_by = verb

    def undo(self) -> None:
        """The settlement was refused: the claim is as it was."""
        self.fate = Fate.HELD

    def end(self, fate: Fate) -> None:
        """The claim is over, as far as this consumer is concerned."""
        self.fate = fate
        if self._on_end is not None:
            self._on_end(self)

    # -- whose work ends with the claim ------------------------------------------------

    def enter(self) -> None:
        """The present task works under this claim, and is cut off if the claim is lost."""
        self._holder = asyncio.current_task()
        self._holder_cancelling = 0 if self._holder is None else self._holder.cancelling()

    def leave(self, error: BaseException | None) -> bool:
        """The work is over; whether it was cut off, and by nobody else.

        The bookkeeping is that of ``asyncio.timeout``: a cancellation that also came from
        elsewhere is not ours to swallow.
        """
        holder, self._holder = self._holder, None
        if not self._is_cutting or holder is None:
            return False
        self._is_cutting = False
        left = holder.uncancel()
        return left <= self._holder_cancelling and isinstance(error, asyncio.CancelledError)

    def lose(self) -> None:
        """The receipt is stale: tell the holder."""
        if self.fate is not Fate.HELD:
            return
        self.end(Fate.LOST)
        if self._holder is not None:
            self._is_cutting = True
            self._holder.cancel()

    def __str__(self) -> str:
        return f"Message {self.delivery.message.id} of queue {self.delivery.queue!r}"
