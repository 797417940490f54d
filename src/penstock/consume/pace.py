"""The time that consuming waits by: steady, relative, and injected.

Leases are counted on the store's clock, but a consumer only has to know how much of one has
gone by here, so a wall clock that jumps does not matter to it.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

__all__ = ["LOOP_PACE", "LoopPace", "Pace"]


class Pace(Protocol):
    """Tells how much time has gone by, and lets some more go by."""

    @property
    def claim_grace_ms(self) -> int:
        """How long a claim that is under way may take to answer once nobody wants more."""
        ...

    def now(self) -> int:
        """Milliseconds since some fixed point; it never goes back."""
        ...

    async def sleep(self, ms: int) -> None:
        """Return when ``ms`` have gone by."""
        ...


class LoopPace:
    """The event loop's own time."""

    #: A claim that is cancelled after it was granted leaves deliveries in flight until their
    #: leases lapse; one that waits for messages would hold up the end. A round trip fits.
    claim_grace_ms: int = 250

    def now(self) -> int:
        """Milliseconds of the loop's steady clock."""
        return int(asyncio.get_running_loop().time() * 1000)

    async def sleep(self, ms: int) -> None:
        """Return when ``ms`` have gone by."""
        await asyncio.sleep(ms / 1000)


LOOP_PACE: Final = LoopPace()
