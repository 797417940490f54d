"""Finds at the broker what became of the claims of an earlier process.

The histories of the deliveries say it for a whole batch in a few calls. Only the receipts of
claims that are still live need a call per message, and a credential that may read everything;
without one, the deliveries come back when their leases lapse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from penstock.client import Client
from penstock.errors import Forbidden, UnknownMessage
from penstock.model.delivery import Event, Receipt
from penstock.model.limits import DLQ_SUFFIX, MAX_PAGE
from penstock.model.states import SETTLED, State, Transition
from penstock.pipeline.format.batch import Batch
from penstock.pipeline.format.read_back import runs

__all__ = ["Recovered", "ended", "recover", "replayed", "retried_apart"]

#: Calls under way at one time.
_UNDER_WAY: Final = 16


class Recovered(Struct, frozen=True):
    """The deliveries of a batch, by message id."""

    held: Mapping[int, Receipt]
    """Still claimed by the stream."""
    ended: frozenset[int]
    """Done, failed or expired."""
    given_up: bool
    """The batch failed, and its rows are retried in smaller batches."""


def retried_apart(consumer: str, number: int) -> str:
    """The error that marks the deliveries of a batch that was given up."""
    return f"Micro-batch {number} of {consumer} failed; its rows are retried in smaller batches."


async def recover(q: Client, queue: str, consumer: str, batch: Batch) -> Recovered:
    """What became of the claims of ``batch``."""
    histories = await _histories(q, queue, [claim.message_id for claim in batch.claims])
    mark = retried_apart(consumer, batch.number)
    live = [
        message_id
        for message_id, events in histories.items()
        if events[-1].state is State.IN_FLIGHT
        and events[-1].consumer == consumer
        and events[-1].at >= batch.claimed_at
    ]
    return Recovered(
        await _receipts(q, queue, consumer, live),
        _ended(queue, histories),
        any(event.error == mark for events in histories.values() for event in events),
    )


async def ended(q: Client, queue: str, message_ids: Collection[int]) -> frozenset[int]:
    """Those that are settled or gone, and are therefore not handed out again."""
    histories = await _histories(q, queue, message_ids)
    return _ended(queue, histories) | (frozenset(message_ids) - histories.keys())


async def replayed(q: Client, queue: str, claimed: Mapping[int, int]) -> frozenset[int]:
    """Deliveries that were replayed since an earlier claim: message id to the time of that claim.

    Each is claimed now. A delivery without a record of the earlier claim counts as replayed: it
    was removed and made again.
    """
    histories = await _histories(q, queue, claimed.keys())
    return frozenset(
        message_id
        for message_id, since in claimed.items()
        if _is_replayed(histories.get(message_id, ()), since)
    )


def _is_replayed(events: Sequence[Event], since: int) -> bool:
    was_claimed = False
    for event in events[:-1]:
        if event.transition is Transition.CLAIM and event.at >= since:
            was_claimed = True
        elif event.transition is Transition.REPLAY and was_claimed:
            return True
    return not was_claimed


def _ended(queue: str, histories: Mapping[int, Sequence[Event]]) -> frozenset[int]:
    # A dead-letter queue hands out the deliveries that are failed.
    final = SETTLED - {State.FAILED} if queue.endswith(DLQ_SUFFIX) else SETTLED
    return frozenset(
        message_id for message_id, events in histories.items() if events[-1].state in final
    )


async def _histories(q: Client, queue: str, message_ids: Iterable[int]) -> dict[int, list[Event]]:
    """The transitions of these messages in the queue, oldest first; none is left out if empty."""
    wanted = frozenset(message_ids)
    found: dict[int, list[Event]] = {}
    under_way = asyncio.Semaphore(_UNDER_WAY)

    async def read(first: int, last: int) -> None:
        position = first
        async with under_way:
            while position <= last:
                page = await q.queue_history(queue, position, limit=MAX_PAGE)
                for entry in page.entries:
                    if entry.message_id in wanted and entry.message_id <= last:
                        found.setdefault(int(entry.message_id), []).append(entry.event)
                if page.next_offset <= position:
                    return
                position = page.next_offset

    await asyncio.gather(*(read(first, last) for first, last in runs(sorted(wanted))))
    return found


async def _receipts(
    q: Client, queue: str, consumer: str, message_ids: Iterable[int]
) -> dict[int, Receipt]:
    """The receipts of live claims of the consumer, as far as the credential may see them."""
    found: dict[int, Receipt] = {}
    under_way = asyncio.Semaphore(_UNDER_WAY)

    async def look(message_id: int) -> None:
        async with under_way:
            try:
                deliveries = (await q.message(message_id)).deliveries
            except UnknownMessage:
                return
        for one in deliveries:
            if one.queue == queue and one.consumer == consumer and one.receipt is not None:
                found[message_id] = one.receipt

    try:
        await asyncio.gather(*map(look, message_ids))
    except Forbidden:
        return {}
    return found
