"""Sweep: time takes effect in every queue, and retention removes what may go (C3, G1, A1).

Due delays, lapsed leases, expiry and retention are one duty here and not four, because the
contract has one verb for them: an engine walks its queues once and does all of it, in an
order that only it knows to be right (what lapses may expire, and what expired may go).
"""

from __future__ import annotations

from typing import Final

from penstock.keepers.keeper import Pass
from penstock.storage.contract import Engine

__all__ = ["Sweep"]

#: Claims let time take effect in the queues that somebody claims from; nobody waits for the
#: others, and a second is as late as C5 lets anything be.
SWEEP_EVERY_MS: Final = 1_000
#: Deliveries of one queue that are moved in one go, of each kind, while everybody else has to
#: wait: at some 20 µs each, five milliseconds. A commit a pass, it still removes tens of
#: thousands a second.
SWEEP_LIMIT: Final = 250


class Sweep:
    """Sweeps the store."""

    name: Final = "sweep"
    every_ms: Final = SWEEP_EVERY_MS

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self) -> Pass:
        """Sweep every queue once."""
        reply = await self._engine.sweep(SWEEP_LIMIT)
        moved = reply.due + reply.lapsed + reply.expired
        gone = reply.removed + reply.entries_removed + reply.ids_forgotten
        return Pass(moved + gone, reply.more)
