"""The clock of a consumer: steady, relative, and injected.

Leases are counted on the store's clock, but a consumer only has to know how much of one has
passed locally, so a wall clock that jumps does not affect it.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

__all__ = ["LOOP_PACE", "LoopPace", "Pace"]


class Pace(Protocol):
    """A steady clock that can sleep."""

    @property
    def claim_grace_ms(self) -> int:
        """How long a claim in progress may take to answer once the consumption is stopped."""
        ...

    def now(self) -> int:
        """Milliseconds since a fixed point; never decreases."""
        ...

    async def sleep(self, ms: int) -> None:
        """Return after ``ms`` milliseconds."""
        ...


class LoopPace:
    """The event loop's own time."""

    #: A claim that is cancelled after the grant leaves deliveries in flight until their leases
    #: lapse, and one that waits for messages would delay the end. A round trip fits.
    claim_grace_ms: int = 250

    def now(self) -> int:
        """Milliseconds of the loop's steady clock."""
        return int(asyncio.get_running_loop().time() * 1000)

    async def sleep(self, ms: int) -> None:
        """Return after ``ms`` milliseconds."""
        await asyncio.sleep(ms / 1000)


LOOP_PACE: Final = LoopPace()
