"""Peek and purge: show or remove deliveries in one state, in claim order (C4).

Peeking locks and consumes nothing, and a page examines at most ``MAX_SCAN`` deliveries. A purge
locks the deliveries it selected, checks them again and removes them, all in one commit (S3).
Both wait for a turn before every batch but the first, so that neither starves other tenants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import BadInput, Conflict
from penstock.filters import Filter
from penstock.model.delivery import Page, PurgeReply, Snapshot
from penstock.model.limits import MAX_OFFSET, MAX_PRIORITY
from penstock.model.message import Message
from penstock.model.states import State
from penstock.storage.sql import moves
from penstock.storage.sql.catalog import Queue, Tenant
from penstock.storage.sql.core import Core
from penstock.storage.sql.database import Session
from penstock.storage.sql.phases import Phase, phases_of
from penstock.storage.sql.runs import Run, segment_of
from penstock.storage.sql.snapshots import snapshot
from penstock.storage.sql.walking import Item, Position, Walk, hold, in_claim_order, matching
from penstock.storage.sql.work import Work

__all__ = ["MAX_SCAN", "peek", "purge"]

#: Deliveries that one page examines at most.
MAX_SCAN: Final = 10_000
#: Deliveries whose messages are read, or that are removed, per turn.
_BATCH: Final = 1_000
#: Deliveries that a filter is evaluated for per turn.
_SLICE: Final = 500
#: Deliveries whose payloads are read in one statement, each perhaps from its own segment.
_PAYLOADS: Final = 64
#: A cursor is a 60-bit number, rank * _LANE + message id, so ranks never overlap.
_LANE: Final = MAX_OFFSET + 1


async def peek(
    core: Core,
    tenant: str,
    queue: str,
    state: State,
    where: Filter | None,
    limit: int,
    cursor: str | None,
    *,
    payloads: bool,
) -> Page:
    """One page of the deliveries in ``state``, after the cursor."""
    after = None if cursor is None else _read_cursor(cursor)

    async def look(session: Session, known: Tenant) -> Page:
        found, dead = known.find(queue)
        walk = in_claim_order(session, found.number, phases_of(state, dead=dead), after)
        shown, last = await _select(core, session, known, walk, where, limit, after)
        contents = await _payloads(core, session, known, shown) if payloads else {}
        items = [
            _shown(found, item.run, message, contents.get(message.offset), state)
            for item, message in shown
            # The payload is gone: the message was removed in the meantime, so leave it out.
            if not payloads or message.offset in contents
        ]
        return Page(tuple(items), None if last is None else _make_cursor(last))

    return await core.read(tenant, look)


async def _select(
    core: Core,
    session: Session,
    known: Tenant,
    walk: Walk,
    where: Filter | None,
    limit: int,
    after: Position | None,
) -> tuple[list[tuple[Item, Message]], Position | None]:
    """The deliveries of a page, and its last examined position; None at the end of the queue."""
    selected: list[tuple[Item, Message]] = []
    looked, last = 0, after
    while True:
        if looked:
            await core.turns.take(known.name)
        wanted = limit - len(selected) if where is None else _SLICE
        batch = await walk.take(min(wanted, MAX_SCAN - looked, _BATCH) + 1)
        if not batch:
            return selected, None
        matched = await matching(core, session, known.number, batch, where)
        messages = {item.message_id: message for item, message in matched}
        for item in batch:
            if len(selected) == limit or looked == MAX_SCAN:
                return selected, last
            looked, last = looked + 1, (item.rank, item.message_id)
            if item.message_id in messages:
                selected.append((item, messages[item.message_id]))


async def _payloads(
    core: Core, session: Session, known: Tenant, shown: Sequence[tuple[Item, Message]]
) -> dict[int, bytes]:
    """The payloads by offset (P3)."""
    found: dict[int, bytes] = {}
    for start in range(0, len(shown), _PAYLOADS):
        places = [segment_of(message.offset) for _, message in shown[start : start + _PAYLOADS]]
        numbers = {number for number, _ in places}
        segments = await core.segments.read(session, known.number, numbers, payloads=True)
        for (_, message), (number, index) in zip(
            shown[start : start + _PAYLOADS], places, strict=True
        ):
            if number in segments:
                found[message.offset] = segments[number].payload(index)
    return found


def _shown(
    queue: Queue, run: Run, message: Message, payload: bytes | None, state: State
) -> Snapshot:
    failed = state is State.FAILED
    return snapshot(queue, run.phase, run.life, message, failed=failed, payload=payload)


def _make_cursor(position: Position) -> str:
    rank, message = position
    return f"{rank * _LANE + message:x}"


def _read_cursor(cursor: str) -> Position:
    try:
        rank, message = divmod(int(cursor, 16), _LANE)
    except ValueError:
        rank = message = -1
    if not 0 <= rank <= MAX_PRIORITY:
        raise BadInput("cursor must come from the previous page.", field="cursor")
    return rank, message


async def purge(
    core: Core, tenant: str, queue: str, state: State, where: Filter | None, limit: int
) -> PurgeReply:
    """Remove the first deliveries in ``state``; the reply says whether more are left."""

    async def act(work: Work) -> PurgeReply:
        found, dead = work.tenant.find(queue)
        if state is State.IN_FLIGHT:
            raise Conflict("In-flight deliveries cannot be purged; settle them.", field="state")
        phases = phases_of(state, dead=dead)
        walk = in_claim_order(work.session, found.number, phases)
        # A joining queue keeps deliveries beyond its cursor: the router would add them again.
        end = found.cursor if found.joining else None
        count = batches = 0
        while batch := await walk.take(_BATCH):
            if batches:
                await core.turns.take(tenant)
            batches += 1
            passed = batch if end is None else [item for item in batch if item.offset < end]
            chosen = await _matching(core, work, passed, where)
            while chosen:
                if count == limit:
                    return PurgeReply(count, more=True)
                part, chosen = chosen[: limit - count], chosen[limit - count :]
                count += await _remove(core, work, part, phases, where)
        return PurgeReply(count, more=False)

    return await core.transact(tenant, act)


async def _matching(
    core: Core, work: Work, items: Sequence[Item], where: Filter | None
) -> Sequence[Item]:
    if where is None:
        return items
    found = await matching(core, work.session, work.tenant.number, items, where)
    return [item for item, _ in found]


async def _remove(
    core: Core, work: Work, items: Sequence[Item], phases: Sequence[Phase], where: Filter | None
) -> int:
    """Remove the items that still exist and still match; returns how many were removed."""
    held = await hold(work, items, phases)
    # Before it was locked, a message may have been replaced by one the filter rejects.
    meant = await _matching(core, work, list(held.values()), where)
    by_run: dict[int, tuple[Run, list[int]]] = {}
    for _, message_id, run in meant:
        by_run.setdefault(id(run), (run, []))[1].append(segment_of(message_id)[1])
    for run, members in by_run.values():
        moves.remove(work, run, members)
    await work.write()
    return len(meant)
