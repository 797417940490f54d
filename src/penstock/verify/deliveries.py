"""Checks on a single snapshot of a delivery: C1, C2, C3, C4, D1 and S3, and G1 against the log.

A page shows one moment, so a defect inside a snapshot, or between two of one page, is
permanent and needs no second check.

- S3: it is in the queue and in the state that were requested.
- C1: a delivery in flight has a consumer, a claim time and a deadline.
- C2: a delivery in flight or done was granted at least once, and not more grants were
  released than given.
- C3: nothing is due before its ``deliver_at``, nothing expired before its ``expires_at``.
- C4: priority descending, then message id.
- D1: a failed delivery has a time of failure.

Every delivery also names the log entry that its values come from, which must be in the log (G1)
and be equal (P3). The log was read before the queue, so deliveries of later messages are not
compared. If the log lacks the entry of an earlier message, it is looked up again:

- the log has the entry now: the first reading missed it (L2);
- the message is unknown, and the delivery is still there: it was removed too early (G1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.model.delivery import Snapshot
from penstock.model.limits import MAX_ATTEMPTS, MAX_PRIORITY
from penstock.model.states import State
from penstock.verify.browse import Place, Scan, find, rank_of
from penstock.verify.inspection import Gone, Inspection, Missing, fingerprint
from penstock.verify.log import appeared, entry_at

__all__ = ["CLOCK_STEP_MS", "Defect", "check_reference", "defects_of", "out_of_order"]

#: The clock of a store may be set back a little. Smaller deviations than this are attributed to
#: that.
CLOCK_STEP_MS: Final = 1_000


class Defect(Struct, frozen=True):
    """A defect of a delivery."""

    law: str
    detail: str


def defects_of(place: Place, shown: Snapshot) -> Iterator[Defect]:
    """All defects that a snapshot alone shows."""
    if shown.queue != place.queue or shown.state is not place.state:
        yield Defect("S3", f"asked for {place}, got one {Place(shown.queue, shown.state)}")
    if not 0 <= shown.message.priority <= MAX_PRIORITY:
        yield Defect("C4", f"it has priority {shown.message.priority}")
    yield from _claim_defects(shown)
    yield from _attempts_defects(shown)
    yield from _time_defects(shown)
    if shown.state is State.FAILED and shown.at is None:
        yield Defect("D1", "it failed, and has no time of failure")


def out_of_order(before: int, items: Sequence[Snapshot]) -> Iterator[Snapshot]:
    """Deliveries that come too late in a page; ``before`` is the rank before the page."""
    for item in items:
        rank = rank_of(item.message)
        if rank <= before:
            yield item
        before = max(before, rank)


def _claim_defects(shown: Snapshot) -> Iterator[Defect]:
    if shown.state is State.IN_FLIGHT:
        for field in ("consumer", "claimed_at", "lease_deadline"):
            if getattr(shown, field) is None:
                yield Defect("C1", f"it is in flight without a {field}")


def _attempts_defects(shown: Snapshot) -> Iterator[Defect]:
    if not 0 <= shown.attempts <= MAX_ATTEMPTS:
        yield Defect("C2", f"it has {shown.attempts} attempts")
    elif shown.attempts == 0 and shown.state in (State.IN_FLIGHT, State.DONE):
        yield Defect("C2", f"it is {shown.state.value} and was never granted")
    elif shown.state is State.IN_FLIGHT and MAX_ATTEMPTS > shown.attempts <= shown.released:
        yield Defect("C2", f"{shown.released} of its {shown.attempts} grants were released")


def _time_defects(shown: Snapshot) -> Iterator[Defect]:
    message, at = shown.message, shown.at
    if shown.state is State.DELAYED:
        if at is None:
            yield Defect("C3", "it is delayed, and has no due time")
        elif at + CLOCK_STEP_MS < message.deliver_at:
            yield Defect("C3", f"it is due at {at}, before its deliver_at {message.deliver_at}")
    elif shown.state is State.EXPIRED:
        if message.expires_at is None:
            yield Defect("C3", "it expired without an expires_at")
        elif at is not None and at + CLOCK_STEP_MS < message.expires_at:
            yield Defect("C3", f"it expired at {at}, before its expires_at {message.expires_at}")


# -- the log ----------------------------------------------------------------------------------


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
    known = await work.message(message.id)
    if not isinstance(known, Missing):
        if known.message.offset == message.offset:
            detail = f"the log left out the entry at offset {message.offset}"
            work.ledger.violation("L2", detail, message_id=message.id)
        return
    if not isinstance(known, Gone):
        return
    # A message never comes back. If its delivery is still there, it was removed too early.
    there = await find(work, scan, message)
    if not isinstance(there, Missing):
        detail = f"it is {scan.place}, and its message is gone"
        work.ledger.violation("G1", detail, queue=queue, message_id=message.id)


async def _confirm_difference(work: Inspection, scan: Scan, shown: Snapshot) -> None:
    """An entry never changes, so the delivery that names it is wrong, or the log is (L1)."""
    message = shown.message
    entry = await entry_at(work, message.offset)
    if isinstance(entry, Missing):
        return
    # A delivery has its own expiry: by the ttl of its queue, or of a replay.
    logged = replace(entry.message, expires_at=message.expires_at)
    if fingerprint(logged) == fingerprint(message):
        return
    detail = f"its metadata differs from the log at offset {message.offset}"
    work.ledger.violation("P3", detail, queue=scan.place.queue, message_id=message.id)
