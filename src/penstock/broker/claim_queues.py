"""Claims from several queues with one limit, in the given order or fairly.

Each queue is claimed from separately, and ``limit`` counts the deliveries of all of them. If one
queue fails after others have granted deliveries, the claim ends early with what was granted: no
lease is lost, and the next call raises the error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from penstock.errors import PenstockError
from penstock.model.delivery import ClaimOrder, Delivery
from penstock.model.limits import MAX_CLAIM_BYTES

__all__ = ["FairTurns", "claim_round"]

#: Lists of queues whose turn is remembered.
_MAX_TURNS: Final = 1_000

#: Claims up to so many deliveries of one queue.
_ClaimOne: TypeAlias = Callable[[str, int], Awaitable[list[Delivery]]]


class FairTurns:
    """Which queue of a list is the first of the next fair claim."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, ...], int] = {}

    def rotated(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """The queues in the order of this call; the next call begins one queue later."""
        first = self._first.pop(queues, 0)
        if len(self._first) >= _MAX_TURNS:
            del self._first[next(iter(self._first))]
        self._first[queues] = (first + 1) % len(queues)
        return queues[first:] + queues[:first]


async def claim_round(
    queues: Sequence[str], limit: int, order: ClaimOrder, claim_one: _ClaimOne
) -> list[Delivery]:
    """Claim up to ``limit`` deliveries of the queues, without waiting.

    A fair claim first offers each queue an equal share, and then the rest to all of them.
    """
    granted: list[Delivery] = []
    size = 0
    for is_share in (True, False) if order == "fair" else (False,):
        for position, queue in enumerate(queues):
            most = limit - len(granted)
            if not most or size >= MAX_CLAIM_BYTES:
                return granted
            if is_share:
                most = -(-most // (len(queues) - position))
            try:
                found = await claim_one(queue, most)
            except PenstockError:
                if not granted:
                    raise
                return granted
            granted += found
            size += sum(len(delivery.payload) for delivery in found)
    return granted
