"""The keeper protocol: a background duty that runs in bounded passes."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

__all__ = ["Keeper", "Pass"]


class Pass(Struct, frozen=True):
    """The result of one pass."""

    work: int
    """Deliveries moved or removed, and log entries routed or removed."""
    more: bool
    """The pass stopped at its limit: the next one follows immediately."""


class Keeper(Protocol):
    """One background duty."""

    @property
    def name(self) -> str:
        """The name in reports and in the log."""
        ...

    @property
    def every_ms(self) -> int:
        """The pause after a pass that left nothing to do."""
        ...

    async def run(self) -> Pass:
        """Do one pass. The supervisor handles any error."""
        ...
