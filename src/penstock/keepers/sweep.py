"""Sweep: applies time to every queue and removes what retention allows (C3, G1, A1).

Due delays, lapsed leases, expiry and retention are one keeper because the contract has one
verb for them. The engine walks its queues once and does all four, in an order that only it
knows to be right (a lapsed delivery may expire, an expired one may be removed).
"""

from __future__ import annotations

from typing import Final

from penstock.keepers.keeper import Pass
from penstock.storage.contract import Engine

__all__ = ["Sweep"]

#: Claims apply time to the queues they claim from. The other queues have no waiting consumers,
#: and C5 allows a delay of one second.
SWEEP_EVERY_MS: Final = 1_000
#: Deliveries of one queue moved per slice and kind, while all other calls wait: five
#: milliseconds at about 20 µs each. With one commit per pass this still removes tens of
#: thousands per second.
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
