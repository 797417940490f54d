"""Settlements by the name of their verb, as the steps of a program give them."""

from __future__ import annotations

from typing import Final

from penstock.model.delivery import Ack, Extend, Nack, Receipt, Reject, Release, Settlement

__all__ = ["settlement"]

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
            return Release(receipt)
        case _:
            return Extend(receipt, _LEASE_MS)
