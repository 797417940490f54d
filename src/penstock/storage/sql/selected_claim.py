"""Claims with a selector: find waiting deliveries that match, then lock and grant these only.

The search locks nothing, so it delays no other claim. Deliveries that another server took, or whose
message was replaced, between the search and the lock are found out when they are locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_CLAIM_BYTES, MAX_CLAIM_SCAN
from penstock.model.message import Message
from penstock.model.states import State, Transition
from penstock.storage.claim_selector import ClaimSelector
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue
from penstock.storage.sql.copy_sizes import measure
from penstock.storage.sql.core import Core
from penstock.storage.sql.deliveries import phases_of, segment_of
from penstock.storage.sql.granting import Claim, Stretch, deliver, grant, look_at_clock
from penstock.storage.sql.group_cursor import Item, hold, in_claim_order
from penstock.storage.sql.work import Work

__all__ = ["claim_selected", "decide"]

#: Deliveries whose metadata is read in one statement: the first, and the largest batch.
_FIRST_BATCH: Final = 16
_BATCH: Final = 250
#: How often one claim searches again, because everything it found was taken, expired or failed.
_LOOKS: Final = 8


async def claim_selected(
    core: Core, work: Work, queue: Queue, asked: Claim, *, dead: bool
) -> list[Delivery]:
    """Serve a claim with a selector, of a queue that is not ordered."""
    selector = asked.selector
    assert selector is not None
    phases = phases_of(State.AVAILABLE, dead=dead)
    for _ in range(_LOOKS):
        if work.copies.is_full:
            break
        found = await _find(core, work, queue, asked, selector, dead=dead)
        if not found:
            return []
        held = await hold(work, found, phases)
        look_at_clock(core, work)
        taken = await _take(core, work, queue, list(held.values()), selector, dead=dead)
        if taken:
            granted = grant(core, work, queue, asked, taken)
            (deliveries,) = await deliver(core, work, queue, [granted], dead=dead)
            return deliveries
        # Written, so that the next search reads what is left.
        await work.write()
    work.notify(queue, dead=dead)  # Waiting consumers claim again: the queue may hold more.
    return []


async def _find(
    core: Core, work: Work, queue: Queue, asked: Claim, selector: ClaimSelector, *, dead: bool
) -> list[Item]:
    """The first deliveries that match, without locks."""
    cursor = in_claim_order(work.session, queue.number, phases_of(State.AVAILABLE, dead=dead))
    found: list[Item] = []
    looked, size = 0, max(asked.limit, _FIRST_BATCH)
    while len(found) < asked.limit and looked < MAX_CLAIM_SCAN:
        items = await cursor.take(min(size, _BATCH, MAX_CLAIM_SCAN - looked))
        if not items:
            break
        looked, size = looked + len(items), 4 * size
        messages = await decide(core, work, selector, [item.offset for item in items])
        found += [
            item
            for item in items
            if (message := messages.get(item.offset)) is not None and selector.takes(message)
        ]
    return found[: asked.limit]


async def decide(
    core: Core, work: Work, selector: ClaimSelector, offsets: Sequence[int]
) -> dict[int, Message]:
    """Decide the messages at these offsets, in slices; returns those that the selector knows."""
    messages = await core.segments.messages(work.session, work.tenant.number, offsets)
    known: dict[int, Message] = {}
    for offset in offsets:
        message = messages.get(offset)
        if message is None:
            continue  # Its entry left the log, and its delivery with it.
        if not selector.knows(message):
            if selector.is_spent:
                break
            if selector.is_slice_over:
                await core.turns.take(work.tenant.name)
                selector.begin_slice()
        selector.takes(message)
        known[offset] = message
    return known


async def _take(
    core: Core,
    work: Work,
    queue: Queue,
    held: Sequence[Item],
    selector: ClaimSelector,
    *,
    dead: bool,
) -> list[Stretch]:
    """The locked deliveries to grant, in order; expire or fail those that cannot be granted."""
    messages = await decide(core, work, selector, [item.offset for item in held])
    ending = [item.group for item in held if moves.may_end(queue, item.group, work.now)]
    await measure(core, work, queue, ending)
    taken: list[Stretch] = []
    remaining = MAX_CLAIM_BYTES
    for item in sorted(held, key=_claim_order):
        message, group = messages.get(item.offset), item.group
        members = [segment_of(item.message_id)[1]]
        if message is None or not selector.takes(message):
            continue  # It was replaced before it was locked.
        if moves.may_end(queue, group, work.now):
            if work.copies.is_full:
                work.notify(queue)  # They end, and consumers that wait claim, next time.
                break
            if moves.is_expired(group.record, work.now):
                moves.expire(work, group, members, Transition.EXPIRE)
            else:
                moves.exhaust(work, queue, group, members)
        else:
            remaining -= message.size
            if remaining < 0 and taken:
                work.notify(queue, dead=dead)  # Consumers that wait claim the rest.
                break
            taken.append((group, members))
    return taken


def _claim_order(item: Item) -> tuple[int, int]:
    return item.rank, item.position
