"""Explain: why is this message not delivered?

One answer a queue, made from what the engine stores and what the filter says: which clause
is not TRUE, delayed until when, held by whom, blocked behind which message.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.filters import explain as explain_filter
from penstock.filters import parse
from penstock.model.delivery import QueueStats, Snapshot
from penstock.model.limits import is_dead_letter
from penstock.model.message import Message, MessageId
from penstock.model.queue import Ordering, QueueInfo
from penstock.model.states import State

__all__ = ["Why", "explain_delivery"]


class Why(Struct, frozen=True, kw_only=True):
    """Where a message stands in one queue, and in words why it is not handed out."""

    queue: str
    message_id: MessageId
    state: State | None
    """None: the queue does not have it."""
    deliverable: bool
    """A claim with room for it would be given it now."""
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        where = "not in the queue" if self.state is None else self.state.value
        return f"message {self.message_id} in {self.queue!r}: {where}; " + "; ".join(self.reasons)


def explain_delivery(
    info: QueueInfo,
    message: Message,
    snapshot: Snapshot | None,
    stats: QueueStats,
    ahead: Snapshot | None,
    now: int,
) -> Why:
    """The answer for one queue; ``ahead`` is what stands before it in its partition."""
    if snapshot is None:
        reasons = _why_absent(info, message)
        return _answer(info, message, None, reasons, deliverable=False)
    state = snapshot.state
    if state is State.AVAILABLE and is_dead_letter(info.name):
        message = snapshot.message
    reasons = _why_in(info, snapshot, stats, ahead, now)
    deliverable = state is State.AVAILABLE and not reasons
    if deliverable:
        reasons = ["it is available: a claim will get it in its turn"]
    return _answer(info, message, state, reasons, deliverable=deliverable)


def _answer(
    info: QueueInfo,
    message: Message,
    state: State | None,
    reasons: list[str],
    *,
    deliverable: bool,
) -> Why:
    return Why(
        queue=info.name,
        message_id=message.id,
        state=state,
        deliverable=deliverable,
        reasons=tuple(reasons),
    )


def _why_absent(info: QueueInfo, message: Message) -> list[str]:
    explanation = explain_filter(parse(info.policy.filter), message)
    if not explanation.matches:
        return [f"the filter is not TRUE: {explanation}"]
    if info.cursor is not None and info.cursor <= message.offset:
        return [f"the queue is routed up to offset {info.cursor}; the message is still to come"]
    reason = (
        "the filter is TRUE now, but the queue does not have it: it was published before the "
        "queue or its filter, was purged, or retention removed it; replay from the log brings "
        "it in"
    )
    return [reason]


def _why_in(
    info: QueueInfo, snapshot: Snapshot, stats: QueueStats, ahead: Snapshot | None, now: int
) -> list[str]:
    match snapshot.state:
        case State.DELAYED if snapshot.at is not None and snapshot.at > now:
            return [f"delayed until {snapshot.at}, {snapshot.at - now} ms from now"]
        case State.DELAYED:
            return ["its delay is over: the next claim or sweep makes it available"]
        case State.IN_FLIGHT:
            return [_held(snapshot, now)]
        case State.DONE:
            return [f"it was acked at {snapshot.at}"]
        case State.EXPIRED:
            return [f"it expired at {snapshot.at}"]
        case State.FAILED:
            error = f": {snapshot.error}" if snapshot.error else ""
            after = f"after {snapshot.attempts} attempts{error}"
            return [f"it failed at {snapshot.at} {after}; it waits in {info.name}.dlq"]
        case State.AVAILABLE:
            return _why_waiting(info, snapshot, stats, ahead, now)


def _held(snapshot: Snapshot, now: int) -> str:
    deadline = snapshot.lease_deadline or 0
    if deadline <= now:
        return f"the lease of {snapshot.consumer!r} ran out; the next claim or sweep takes it back"
    return f"held by {snapshot.consumer!r} for {deadline - now} ms more"


def _why_waiting(
    info: QueueInfo, snapshot: Snapshot, stats: QueueStats, ahead: Snapshot | None, now: int
) -> list[str]:
    reasons: list[str] = []
    message = snapshot.message
    if info.policy.paused:
        reasons.append("the queue is paused")
    if (
        message.expires_at is not None
        and message.expires_at <= now
        and not is_dead_letter(info.name)
    ):
        reasons.append(f"it expired at {message.expires_at}; the next claim or sweep moves it")
    if info.policy.ordering is Ordering.PARTITION:
        partition = message.partition_key or ""
        if ahead is not None:
            reasons.append(
                f"blocked behind message {ahead.message.id} ({ahead.state.value}) in partition "
                f"{partition!r}"
            )
        found = next((item for item in stats.partitions if item.partition == partition), None)
        if found is not None and found.owner is None:
            reasons.append(
                f"no consumer owns partition {partition!r}; it goes to the next that joins"
            )
    return reasons
