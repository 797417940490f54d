"""What a keeper is: a duty that is done in passes, each of them bounded."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

__all__ = ["Keeper", "Pass"]


class Pass(Struct, frozen=True):
    """What one pass did."""

    work: int
    """Deliveries that moved or went, log entries that were routed or went."""
    more: bool
    """It stopped at its bound: the next pass follows at once."""


class Keeper(Protocol):
    """One background duty."""

    @property
    def name(self) -> str:
        """What reports and the log call it."""
        ...

    @property
    def every_ms(self) -> int:
        """The pause after a pass that left nothing to do."""
        ...

    async def run(self) -> Pass:
        """Do one pass. Whatever it raises is the supervisor's business."""
        ...
