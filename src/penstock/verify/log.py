"""The log: L1 and L2, its payloads (P3), and what was removed from it (G1).

- L1: offsets strictly increase from entry to entry and from page to page; an entry reads
  the same with its payload as without, and the same at the end of the run as at its start.
- L2: the second reading finds nothing new below the end of the first, and misses nothing
  that ``message`` still finds. What retention removed is missing from both.
- P3: every payload has the size and the checksum of its entry. The payload of a replaced
  entry is not checked.
- G1: nothing was removed that a queue still has to route.

A part of the log that cannot be read is damage (X1); reading continues after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from penstock.model.checksum import checksum
from penstock.model.delivery import LogEntry
from penstock.model.message import Message
from penstock.verify.inspection import (
    PAGE,
    PAYLOAD_BYTES,
    Damaged,
    Gone,
    Inspection,
    LogIndex,
    Missing,
    fingerprint,
)

__all__ = ["entry_at", "is_intact", "read_again", "read_first"]

#: Damaged parts of the log that are skipped; with more there is not much left to check.
_MAX_HOLES: Final = 1_000


def is_intact(message: Message, payload: bytes | None) -> bool:
    """Whether these are the bytes that were published."""
    return (
        payload is not None
        and len(payload) == message.size
        and checksum(payload) == message.checksum
    )


async def entry_at(work: Inspection, offset: int, *, payloads: bool = False) -> LogEntry | Missing:
    """The log entry at one offset."""
    page = await work.look(work.store.read_log(offset, limit=1, payloads=payloads))
    if isinstance(page, Missing):
        return page
    for entry in page.entries:
        if entry.message.offset == offset:
            return entry
    return Gone()


async def read_first(work: Inspection) -> None:
    """Read the whole log, with payloads in a deep run, and index it."""
    end = await work.read(work.store.log_end(), "the end of the log")
    if isinstance(end, Missing):
        for law in ("L1", "L2", "P3", "G1"):
            work.ledger.skip(law, "the log has no readable end")
        return
    work.index = LogIndex(end)
    async for entries in _pages(work, "log"):
        for entry in entries:
            work.index.add(entry.message)
        if work.deep:
            await _check_payloads(work, [entry.message for entry in entries])
    if not work.deep:
        work.ledger.skip("P3", "only a deep run reads payloads")


async def read_again(work: Inspection) -> None:
    """Read the log again up to the end of the first reading, and compare."""
    index = work.index
    position = 0
    async for entries in _pages(work, "log again"):
        for entry in entries:
            offset = entry.message.offset
            while position < len(index) and index.offsets[position] < offset:
                await _check_removed(work, position)
                position += 1
            work.ledger.examined("L2")
            if position < len(index) and index.offsets[position] == offset:
                if index.prints[position] != fingerprint(entry.message):
                    _changed(work, entry.message)
                position += 1
            elif index.covers(offset):
                appeared(work, entry.message)
    for left in range(position, len(index)):
        await _check_removed(work, left)


def appeared(work: Inspection, message: Message) -> None:
    """Report an entry that the first reading, which had passed it, did not see."""
    detail = f"the entry at offset {message.offset} appeared after a reader had passed it"
    work.ledger.violation("L2", detail, message_id=message.id)


def _changed(work: Inspection, message: Message) -> None:
    detail = f"the entry at offset {message.offset} has changed since it was first read"
    work.ledger.violation("L1", detail, message_id=message.id)


# -- reading pages -------------------------------------------------------------------------


async def _pages(work: Inspection, what: str) -> AsyncIterator[Sequence[LogEntry]]:
    """The entries below the index's end, page by page, in order, skipping damage."""
    position, singly, end = 0, 0, work.index.end
    while position < end:
        limit = 1 if singly else PAGE
        page = await work.look(work.store.read_log(position, limit=limit))
        if isinstance(page, Missing):
            if singly:
                position = await _around(work, position, page)
                if len(work.index.holes) > _MAX_HOLES:
                    work.ledger.skip("L1", f"the log was read up to offset {position} only")
                    work.index.holes.append((position, end))
                    return
            singly = 0 if singly else PAGE
            continue
        singly = max(0, singly - 1)
        yield _in_order(work, position, page.entries)
        work.tell(what, min(position, end), end)
        last = max((entry.message.offset for entry in page.entries), default=position - 1)
        if page.entries and page.next_offset <= last:
            detail = f"a reader would continue from offset {page.next_offset} and read it again"
            work.ledger.violation("L1", detail, message_id=last)
        elif page.next_offset <= position:
            break
        position = max(page.next_offset, last + 1)
        await asyncio.sleep(0)
    work.tell(what, end, end)


def _in_order(work: Inspection, start: int, entries: Sequence[LogEntry]) -> list[LogEntry]:
    """The entries below the end, without those out of order, which are reported."""
    kept: list[LogEntry] = []
    last = start - 1
    for entry in entries:
        message = entry.message
        if message.offset >= work.index.end:
            break
        work.ledger.examined("L1")
        work.ledger.examined("X1")
        detail = None
        if message.offset <= last:
            detail = f"offset {message.offset} comes after {last}"
        elif not 0 <= message.id <= message.offset:
            detail = f"message {message.id} is at offset {message.offset}, before its own"
        elif message.is_replacement and message.key is None:
            detail = f"the entry at offset {message.offset} replaces a message without a key"
        if detail is None:
            last = message.offset
            kept.append(entry)
        else:
            work.ledger.violation("L1", detail, message_id=message.id)
    return kept


async def _around(work: Inspection, position: int, damage: Missing) -> int:
    """Report the damage at ``position``; returns where the log can be read again."""
    end = work.index.end
    step = 1
    while position + step < end and await _is_damaged(work, position + step):
        step *= 2
    low, high = position + step // 2, min(position + step, end)
    while high - low > 1:
        middle = (low + high) // 2
        if await _is_damaged(work, middle):
            low = middle
        else:
            high = middle
    if (position, high) not in work.index.holes:
        work.index.holes.append((position, high))
    work.damaged(damage, f"the log from offset {position} to {high - 1}", message_id=position)
    return high


async def _is_damaged(work: Inspection, offset: int) -> bool:
    page = await work.look(work.store.read_log(offset, limit=1))
    return isinstance(page, Damaged)


# -- payloads ------------------------------------------------------------------------------


async def _check_payloads(work: Inspection, messages: Sequence[Message]) -> None:
    for run in _runs(messages):
        page = await work.look(work.store.read_log(run[0].offset, limit=len(run), payloads=True))
        found = {}
        if not isinstance(page, Missing):
            found = {entry.message.offset: entry for entry in page.entries}
        for message in run:
            # If a page cannot be read, read each entry, to find the bad one.
            entry = found.get(message.offset) or await entry_at(work, message.offset, payloads=True)
            if isinstance(entry, Missing):
                work.damaged(entry, "the payload", message_id=message.id)
                continue
            work.ledger.examined("P3")
            if fingerprint(entry.message) != fingerprint(message):
                _changed(work, message)
            elif not is_intact(message, entry.payload):
                await _confirm_payload(work, message)


def _runs(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Consecutive messages whose payloads fit one reply."""
    begin = size = 0
    for position, message in enumerate(messages):
        if position > begin and size + message.size > PAYLOAD_BYTES:
            yield messages[begin:position]
            begin, size = position, 0
        size += message.size
    if begin < len(messages):
        yield messages[begin:]


async def _confirm_payload(work: Inspection, message: Message) -> None:
    """Wrong bytes stay wrong, unless the entry was replaced meanwhile."""

    async def check() -> str | None:
        newest = await work.message(message.id)
        if isinstance(newest, Missing) or newest.message.offset != message.offset:
            return None
        entry = await entry_at(work, message.offset, payloads=True)
        if isinstance(entry, Missing) or is_intact(message, entry.payload):
            return None
        return "the payload in the log is not what was published"

    await work.confirm("P3", check, message_id=message.id)


# -- removed entries -----------------------------------------------------------------------


async def _check_removed(work: Inspection, position: int) -> None:
    """The second reading missed an entry: retention may have removed it if it was unused."""
    offset, message_id = work.index.offsets[position], work.index.ids[position]
    if not work.index.covers(offset) or not work.may_confirm("L2"):
        return

    async def check() -> str | None:
        known = await work.look(work.store.message(message_id))
        if isinstance(known, Missing):
            await _check_routed(work, offset, message_id)
            return None
        if known.message.offset != offset or isinstance(await entry_at(work, offset), Damaged):
            return None
        return f"the second reading of the log left out the entry at offset {offset}"

    await work.confirm("L2", check, message_id=message_id)


async def _check_routed(work: Inspection, offset: int, message_id: int) -> None:
    """A cursor never decreases: one at or below the offset now had not passed it then."""
    for name, before in work.queues.items():
        if before.cursor is None:
            continue
        info = await work.look(work.store.queue(name))
        if isinstance(info, Missing) or info.created_at != before.created_at:
            continue
        if info.cursor is not None and info.cursor <= offset:
            detail = f"offset {offset} was removed before the queue was routed past it"
            work.ledger.violation("G1", detail, queue=name, message_id=message_id)
