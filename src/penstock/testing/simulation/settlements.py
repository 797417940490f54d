"""Settlements by the name of their verb, as the steps of a program give them."""

from __future__ import annotations

from typing import Final

from penstock.model.delivery import Ack, Extend, Nack, Receipt, Reject, Release, Settlement
from penstock.testing.simulation.policies import WORK_POLICY

__all__ = ["asked_lease_ms", "settlement"]

_LEASE_MS: Final = 4_000


def settlement(verb: str, receipt: Receipt, ms: int | None) -> Settlement:
    """The settlement with that name."""
    match verb:
        case "ack":
            return Ack(receipt, None if ms is None else b"r")
        case "nack":
            return Nack(receipt, f"error {ms}", ms)
        case "reject":
            return Reject(receipt, "rejected")
        case "release":
            return Release(receipt, ms)
        case _:
            return Extend(receipt, None if ms == 0 else _LEASE_MS)


def asked_lease_ms(item: Settlement) -> int:
    """The lease that a settlement of the judged queue asks for; 0 if it is no extension."""
    if not isinstance(item, Extend):
        return 0
    return WORK_POLICY.lease_ms if item.lease_ms is None else item.lease_ms
