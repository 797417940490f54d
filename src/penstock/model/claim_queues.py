"""The queues that one claim, consumption or worker names, and their order."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import BadInput
from penstock.model.limits import MAX_CLAIM_QUEUES, check_queue_name, shown

__all__ = ["check_claim_order", "check_claim_queues", "check_one_or_more_queues"]


def check_claim_order(order: object) -> None:
    """Refuse an order that is neither ``given`` nor ``fair``."""
    if order not in ("given", "fair"):
        raise BadInput(f"order is {shown(order)}; it must be 'given' or 'fair'.", field="order")


def check_claim_queues(queues: object) -> tuple[str, ...]:
    """Return the queues of a claim if they are valid names, distinct, and not too many."""
    if not isinstance(queues, list | tuple) or not 1 <= len(queues) <= MAX_CLAIM_QUEUES:
        raise BadInput(
            f"queues must be a list of 1 to {MAX_CLAIM_QUEUES} queues.",
            field="queues",
            limit=MAX_CLAIM_QUEUES if queues else 1,
        )
    names = tuple(check_queue_name(name, "queues") for name in queues)
    if len(set(names)) < len(names):
        raise BadInput("queues names a queue twice.", field="queues")
    return names


def check_one_or_more_queues(queue: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names that a parameter holds which takes one queue or a list of queues."""
    if isinstance(queue, list | tuple):
        return check_claim_queues(queue)
    return (check_queue_name(queue),)
