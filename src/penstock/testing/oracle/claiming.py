"""Claiming and settling."""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence
from typing import assert_never

from penstock.filters import Filter
from penstock.model.delivery import (
    Ack,
    Delivery,
    Extend,
    Nack,
    Outcome,
    Receipt,
    Reject,
    Release,
    Settlement,
    Verdict,
)
from penstock.model.limits import MAX_ATTEMPTS, MAX_CLAIM_BYTES, MAX_CLAIM_SCAN, cut_error
from penstock.model.queue import Ordering
from penstock.model.states import State, Transition
from penstock.storage.contract import Jitter
from penstock.testing.oracle import partitions, transitions
from penstock.testing.oracle.state import Held, Queue, Store, Tally

__all__ = ["claim", "settle", "would_give"]


def claim(
    store: Store,
    queue: Queue,
    consumer: str,
    limit: int,
    lease_ms: int | None,
    now: int,
    where: Filter | None = None,
    *,
    dead: bool,
) -> list[Delivery]:
    """Apply time, heartbeat if the queue is ordered, then hand out available deliveries."""
    transitions.let_time_act(store, queue, now, Tally(), dead=dead)
    ordered = not dead and queue.policy.ordering is Ordering.PARTITION
    if ordered:
        partitions.join(store, queue, consumer, now)
    if queue.dead_paused if dead else queue.policy.paused:
        return []
    granted: list[Delivery] = []
    remaining = MAX_CLAIM_BYTES
    looked: set[int] = set()
    while len(granted) < limit:
        candidates = (
            _of_own_partitions(store, queue, consumer, {one.receipt for one in granted})
            if ordered
            else [d for d in queue.held(dead=dead) if d.state is State.AVAILABLE]
        )
        candidates.sort(key=lambda d: store.place(queue, d))
        first = next((d for d in candidates if _is_wanted(store, queue, d, where, looked)), None)
        if first is None:
            break
        if not dead and transitions.is_exhausted(store, queue, first):
            own = store.message(queue, first).max_attempts
            error = f"max_attempts was lowered to {own or queue.policy.max_attempts}"
            transitions.fail(store, queue, first, Transition.EXHAUST, now, error)
            continue
        remaining -= store.newest(queue.tenant, first.message_id).message.size
        if remaining < 0 and granted:
            break
        granted.append(_grant(store, queue, first, consumer, lease_ms, now))
    return granted


def _is_wanted(
    store: Store, queue: Queue, held: Held, where: Filter | None, looked: set[int]
) -> bool:
    """Whether a claim takes the delivery; a selector looks at a limited number of them."""
    if where is None:
        return True
    if held.message_id not in looked and len(looked) == MAX_CLAIM_SCAN:
        return False
    looked.add(held.message_id)
    return where.matches(store.message(queue, held))


def would_give(store: Store, queue: Queue, consumer: str, now: int, *, dead: bool) -> bool:
    """Whether a claim would return anything now; tries it on copies."""
    twin = copy.copy(store)
    twin.keys = dict(store.keys)
    twin.ended = []
    return bool(claim(twin, queue.copy(), consumer, 1, None, now, dead=dead))


def settle(
    store: Store,
    queue: Queue,
    settlements: Sequence[Settlement],
    now: int,
    jitter: Jitter,
    *,
    dead: bool,
    publishing: bool,
) -> list[Outcome]:
    """Apply the settlements in order, each on its own.

    An ack may be repeated, except with a publish.
    """
    ended = {d.receipt for d in queue.held(dead=dead) if d.state is State.DONE}
    return [
        Outcome(receipt=one.receipt, verdict=Verdict.STALE)
        if publishing and one.receipt in ended
        else _settle_one(store, queue, one, now, jitter, dead=dead)
        for one in settlements
    ]


def _of_own_partitions(
    store: Store, queue: Queue, consumer: str, granted: Container[Receipt]
) -> list[Held]:
    own = partitions.owned(queue, consumer)
    nexts = [partitions.next_candidate(store, queue, p, granted) for p in own]
    return [held for held in nexts if held is not None]


def _grant(
    store: Store, queue: Queue, held: Held, consumer: str, lease_ms: int | None, now: int
) -> Delivery:
    store.receipts += 1
    held.state, held.position = State.IN_FLIGHT, None
    held.attempts = min(held.attempts + 1, MAX_ATTEMPTS)
    held.receipt = Receipt(f"r{store.receipts}")
    held.claimed_at, held.consumer = now, consumer
    held.lease_deadline = now + _lease_ms(queue, lease_ms)
    queue.counters_of(dead=held.dead).grants += 1
    transitions.note(queue, held, Transition.CLAIM, now, consumer=consumer)
    newest = store.newest(queue.tenant, held.message_id)
    return Delivery(
        queue=queue.shown_as(dead=held.dead),
        receipt=held.receipt,
        message=store.message(queue, held),
        payload=newest.payload,
        attempts=held.attempts,
        claimed_at=now,
        lease_deadline=held.lease_deadline,
        error=held.error if held.dead else None,
        failed_at=held.at if held.dead else None,
        original_queue=queue.name if held.dead else None,
    )


def _settle_one(
    store: Store, queue: Queue, settlement: Settlement, now: int, jitter: Jitter, *, dead: bool
) -> Outcome:
    receipt = settlement.receipt
    held = next((d for d in queue.held(dead=dead) if d.receipt == receipt), None)
    if held is not None and held.state is State.DONE and isinstance(settlement, Ack):
        return Outcome(receipt=receipt, verdict=Verdict.OK, state=State.DONE)
    if held is None or held.state is not State.IN_FLIGHT:
        return Outcome(receipt=receipt, verdict=Verdict.STALE)
    until: int | None = None
    match settlement:
        case Ack():
            _ack(store, queue, held, settlement.result, now)
        case Nack():
            queue.counters_of(dead=dead).nacks += 1
            delay_ms = _nack_delay(queue, held, settlement, jitter)
            transitions.give_back(
                store,
                queue,
                held,
                Transition.NACK,
                now,
                delay_ms=delay_ms,
                error=_error(settlement),
            )
            until = held.due_at
        case Reject() if dead:
            transitions.give_back(
                store, queue, held, Transition.REJECT, now, error=_error(settlement)
            )
        case Reject():
            transitions.fail(store, queue, held, Transition.REJECT, now, _error(settlement))
        case Release():
            delay_ms = settlement.delay_ms or 0
            transitions.give_back(store, queue, held, Transition.RELEASE, now, delay_ms=delay_ms)
            until = held.due_at
        case Extend():
            assert held.claimed_at is not None
            last = held.claimed_at + queue.policy.max_lease_ms
            if now >= last:
                return Outcome(receipt=receipt, verdict=Verdict.STALE)
            until = min(now + _lease_ms(queue, settlement.lease_ms), last)
            held.lease_deadline = until
        case _:
            assert_never(settlement)
    failed = held.dead and not dead
    state = State.FAILED if failed else held.state
    return Outcome(receipt=receipt, verdict=Verdict.OK, state=state, until=until)


def _lease_ms(queue: Queue, asked_ms: int | None) -> int:
    policy = queue.policy
    wanted_ms = policy.lease_ms if asked_ms is None else asked_ms
    return sorted((policy.min_lease_ms, wanted_ms, policy.max_lease_ms))[1]


def _error(settlement: Nack | Reject) -> str | None:
    return None if settlement.error is None else cut_error(settlement.error)


def _ack(store: Store, queue: Queue, held: Held, result: bytes | None, now: int) -> None:
    transitions.close_key(store, queue, held)
    consumer = held.consumer
    held.state, held.at, held.result = State.DONE, now, result
    held.claimed_at = held.lease_deadline = held.consumer = None
    queue.counters_of(dead=held.dead).acks += 1
    transitions.note(queue, held, Transition.ACK, now, consumer=consumer)
    if not held.dead:
        transitions.report(store, queue, held, State.DONE)
    transitions.forget_empty_partitions(store, queue)


def _nack_delay(queue: Queue, held: Held, nack: Nack, jitter: Jitter) -> int:
    if nack.delay_ms is not None:
        return nack.delay_ms
    return 0 if held.dead else jitter(queue.policy.backoff.ceiling_ms(held.attempts))
