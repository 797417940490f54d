"""Compares the deliveries of a queue with the log: G1, and P3 for the metadata.

Every delivery names the log entry that its values come from, which must be in the log and be
equal. The log was read before the queue, so deliveries of later messages are not compared. If
the log lacks the entry of an earlier message, it is looked up again:

- the log has the entry now: the first reading missed it (L2);
- the message is unknown, and the delivery is still there: it was removed too early (G1).
"""

from __future__ import annotations

from penstock.model.delivery import Snapshot
from penstock.verify.browse import Scan, find
from penstock.verify.index import fingerprint
from penstock.verify.inspection import PAGE, Inspection
from penstock.verify.log import appeared, entry_at
from penstock.verify.store import Gone, Missing

__all__ = ["check_reference"]


async def check_reference(work: Inspection, scan: Scan, shown: Snapshot) -> None:
    """Compare one delivery with the log."""
    message = shown.message
    if not work.index.covers(message.offset):
        return
    work.ledger.examined("G1")
    position = work.index.find(message.offset)
    if position is None:
        if work.may_confirm("G1", scan.place.queue):
            await _confirm_missing(work, scan, shown)
    elif work.index.prints[position] != fingerprint(message):
        await _confirm_difference(work, scan, shown)


async def _confirm_missing(work: Inspection, scan: Scan, shown: Snapshot) -> None:
    message, queue = shown.message, scan.place.queue
    entry = await entry_at(work, message.offset)
    if not isinstance(entry, Missing):
        appeared(work, message)
        return
    known = await work.look(work.store.message(message.id))
    if not isinstance(known, Missing):
        if known.message.offset == message.offset:
            detail = f"the log left out the entry at offset {message.offset}"
            work.ledger.violation("L2", detail, message_id=message.id)
        return
    work.damaged(known, "the message", message_id=message.id)
    if not isinstance(known, Gone):
        return
    # A message never comes back. If its delivery is still there, it was removed too early.
    there = await find(work.store, scan, message, PAGE)
    if not isinstance(there, Missing):
        detail = f"it is {scan.place}, and its message is gone"
        work.ledger.violation("G1", detail, queue=queue, message_id=message.id)


async def _confirm_difference(work: Inspection, scan: Scan, shown: Snapshot) -> None:
    """An entry never changes, so the delivery that names it is wrong, or the log is (L1)."""
    message = shown.message
    entry = await entry_at(work, message.offset)
    if isinstance(entry, Missing) or fingerprint(entry.message) == fingerprint(message):
        return
    detail = f"its metadata differs from the log at offset {message.offset}"
    work.ledger.violation("P3", detail, queue=scan.place.queue, message_id=message.id)
