"""Explain: why is this message not delivered?

One answer per queue, from what the engine stores and from the filter: which clause is not
TRUE, delayed until when, held by which consumer, blocked behind which message.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.filters import explain as explain_filter
from penstock.filters import parse
from penstock.model.decisions import is_exhausted, is_expired, lowered_limit_error
from penstock.model.delivery import MessageDeliveries, Snapshot
from penstock.model.limits import DLQ_SUFFIX, is_dead_letter
from penstock.model.message import Message
from penstock.model.queue import Ordering, QueueInfo
from penstock.model.reports import Why
from penstock.model.states import State

__all__ = ["ends_with_next_claim", "explain_delivery"]


def explain_delivery(
    info: QueueInfo,
    found: MessageDeliveries,
    ahead: Sequence[Snapshot],
    now: int,
    *,
    values: bool = True,
) -> Why:
    """The answer for one queue; ``ahead`` are the deliveries before it in its partition.

    Without ``values``, the message's values are left out: only its readers may see them.
    """
    message = found.message
    snapshot = _in_queue(info, found.deliveries)
    if snapshot is None:
        return _answer(info, message, None, _why_absent(info, found, values=values))
    blocks = _blocks(info, snapshot, ahead, now)
    if blocks:
        return _answer(info, message, snapshot.state, blocks)
    return _answer(info, message, snapshot.state, [_why_soon(snapshot)], deliverable=True)


def ends_with_next_claim(info: QueueInfo, snapshot: Snapshot, now: int) -> bool:
    """Whether a claim that reaches the delivery expires or fails it instead of handing it out."""
    expired = _is_expired(info, snapshot, now)
    if snapshot.state is not State.IN_FLIGHT:
        delayed = snapshot.state is State.DELAYED and (snapshot.at or 0) > now
        return expired or (not delayed and _is_exhausted(info, snapshot))
    lapsed = (snapshot.lease_deadline or 0) <= now
    return lapsed and (expired or _is_exhausted(info, snapshot))


def _is_expired(info: QueueInfo, snapshot: Snapshot, now: int) -> bool:
    return not is_dead_letter(info.name) and is_expired(snapshot.message.expires_at, now)


def _is_exhausted(info: QueueInfo, snapshot: Snapshot) -> bool:
    own, attempts, released = snapshot.message.max_attempts, snapshot.attempts, snapshot.released
    return not is_dead_letter(info.name) and is_exhausted(info.policy, own, attempts, released)


def _answer(
    info: QueueInfo,
    message: Message,
    state: State | None,
    reasons: list[str],
    *,
    deliverable: bool = False,
) -> Why:
    return Why(
        queue=info.name,
        message_id=message.id,
        state=state,
        deliverable=deliverable,
        reasons=tuple(reasons),
    )


def _in_queue(info: QueueInfo, deliveries: tuple[Snapshot, ...]) -> Snapshot | None:
    """The delivery in this queue; what failed in Q is available in ``Q.dlq``."""
    home = info.name.removesuffix(DLQ_SUFFIX)
    for item in deliveries:
        if item.queue == info.name:
            return item
        if item.queue == home and item.state is State.FAILED:
            return replace(item, queue=info.name, state=State.AVAILABLE)
    return None


def _why_absent(info: QueueInfo, found: MessageDeliveries, *, values: bool) -> list[str]:
    dead = info.name + DLQ_SUFFIX
    for item in found.deliveries:
        if item.queue == dead:
            return [f"it failed, and is {item.state.value} in {dead}"]
    if is_dead_letter(info.name):
        return ["it has not failed"]
    message = found.message
    explanation = explain_filter(parse(info.policy.filter), message)
    if not explanation.matches:
        blames = str(explanation) if values else explanation.without_values
        return [f"the filter is not TRUE: {blames}"]
    if info.cursor is not None and info.cursor <= message.offset:
        return [f"the queue is routed up to offset {info.cursor} and has not reached the message"]
    reason = (
        "the filter is TRUE now, but the queue does not have it: it was published before the "
        "queue or its filter, was cancelled or purged, or was removed by retention; replay it from "
        "the log"
    )
    return [reason]


def _why_soon(snapshot: Snapshot) -> str:
    match snapshot.state:
        case State.DELAYED:
            return "its delay is over: the next claim takes it in its turn"
        case State.IN_FLIGHT:
            return (
                f"the lease of {snapshot.consumer!r} ran out: the next claim takes it in its turn"
            )
        case _:
            return "it is available: a claim takes it in its turn"


def _blocks(info: QueueInfo, snapshot: Snapshot, ahead: Sequence[Snapshot], now: int) -> list[str]:
    """Why a claim would not hand it out now; empty if it would."""
    match snapshot.state:
        case State.DONE:
            return [f"it was acked at {snapshot.at}"]
        case State.EXPIRED:
            return [f"it expired at {snapshot.at}"]
        case State.FAILED:
            error = f": {snapshot.error}" if snapshot.error else ""
            after = f"after {snapshot.attempts} attempts{error}"
            return [f"it failed at {snapshot.at} {after}; it waits in {info.name}.dlq"]
        case State.DELAYED if snapshot.at is not None and snapshot.at > now:
            return [f"delayed until {snapshot.at}, {snapshot.at - now} ms from now"]
        case State.IN_FLIGHT if (snapshot.lease_deadline or 0) > now:
            left = (snapshot.lease_deadline or 0) - now
            return [f"held by {snapshot.consumer!r} for {left} ms more"]
        case State.IN_FLIGHT if _is_exhausted(info, snapshot):
            lease = f"the lease of {snapshot.consumer!r} ran out"
            return [f"{lease} and no attempts are left: the next claim or sweep fails it"]
        case _:
            return _blocks_of_waiting(info, snapshot, ahead, now)


def _blocks_of_waiting(
    info: QueueInfo, snapshot: Snapshot, ahead: Sequence[Snapshot], now: int
) -> list[str]:
    blocks: list[str] = []
    message = snapshot.message
    if info.policy.paused:
        blocks.append("the queue is paused")
    if _is_expired(info, snapshot, now):
        blocks.append(f"it expired at {message.expires_at}; the next claim or sweep moves it")
    elif _is_exhausted(info, snapshot):
        error = lowered_limit_error(info.policy, message.max_attempts)
        blocks.append(f"{error}: it fails when a claim reaches it")
    if info.policy.ordering is Ordering.PARTITION:
        blocks += _blocks_of_partition(info, message, ahead, now)
    return blocks


def _blocks_of_partition(
    info: QueueInfo, message: Message, ahead: Sequence[Snapshot], now: int
) -> list[str]:
    name = message.partition_key or ""
    before = [item for item in ahead if not ends_with_next_claim(info, item, now)]
    held = [
        item
        for item in before
        if item.state is State.IN_FLIGHT and (item.lease_deadline or 0) > now
    ]
    first = [item for item in before if item.message.id < message.id]
    if info.policy.partition_concurrency > 1:
        full = len(held) >= info.policy.partition_concurrency
        return [f"partition {name!r} has {len(held)} in flight already"] if full else []
    delayed = [
        item
        for item in first
        if item.state is State.DELAYED and item.at is not None and item.at > now
    ]
    blocking = held or (first if len(first) >= info.policy.partition_batch else delayed)
    if not blocking:
        return []
    item = min(blocking, key=lambda item: item.message.id)
    where = f"message {item.message.id} ({item.state.value}) in partition {name!r}"
    return [f"blocked behind {where}"]
