"""Snapshots: a delivery as peek and message show it (S3)."""

from __future__ import annotations

from penstock.model.delivery import Snapshot
from penstock.model.message import Message
from penstock.model.states import State
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.phases import LIVE, Phase, is_dead, state_of
from penstock.storage.sql.runs import Life

__all__ = ["snapshot"]


def snapshot(
    queue: Queue,
    phase: Phase,
    life: Life,
    message: Message,
    *,
    failed: bool = False,
    payload: bytes | None = None,
) -> Snapshot:
    """The delivery of a message; ``failed`` shows a dead letter as its queue sees it (D1)."""
    state = State.FAILED if failed else state_of(phase)
    return Snapshot(
        queue=queue.shown_as(dead=is_dead(phase) and not failed),
        message=message,
        state=state,
        attempts=life.attempts,
        released=life.released if phase in LIVE or state is State.IN_FLIGHT else 0,
        at=life.due_at if state is State.DELAYED else life.at,
        claimed_at=life.claimed_at,
        lease_deadline=life.deadline,
        consumer=life.consumer,
        error=life.error,
        payload=payload,
    )
