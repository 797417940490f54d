"""Settle: end claims one by one, or all of them together with a publish (S1, S2, S3).

Loops over the settlements of a call run in steps, for ``LongChanges``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.dead_letter_copies import copied_bytes, is_copied
from penstock.model.decisions import Jitter, extended_deadline, returned_by, transition_of
from penstock.model.delivery import Ack, Extend, Outcome, Receipt, Settlement, Verdict
from penstock.model.states import LIVE, State
from penstock.storage.copy_limit import appends, check_settle_copies
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.moves import ending_of, finish, finish_many, give_back
from penstock.storage.keyvalue.queue import Queue

__all__ = ["abort", "check_copies", "leaving", "settle", "settle_some", "stale"]


def stale(
    queue: Queue, settlements: Sequence[Settlement], now: int, step: int, out: set[int]
) -> Iterator[None]:
    """Add the positions of receipts that are stale for a settle with publish to ``out``.

    An ack made by an earlier call counts as stale: its claim publishes nothing more.
    """
    ended: set[Receipt] = set()
    acked: set[Receipt] = set()
    for position, item in enumerate(settlements, 1):
        receipt = item.receipt
        entry = queue.claims.get(receipt)
        current = entry is not None and receipt not in ended
        if isinstance(item, Extend) and entry is not None:
            current = current and _extended(queue, entry, item, now) is not None
        repeated = isinstance(item, Ack) and receipt in acked
        if not current and not repeated:
            out.add(position - 1)
        if current and not isinstance(item, Extend):
            ended.add(receipt)
            if isinstance(item, Ack):
                acked.add(receipt)
        if not position % step:
            yield


def leaving(
    queue: Queue, settlements: Sequence[Settlement], now: int, step: int, out: set[Receipt]
) -> Iterator[None]:
    """Add the receipts whose settlement reduces the queue's depth to ``out``."""
    for position, item in enumerate(settlements, 1):
        if not position % step:
            yield
        entry = queue.claims.get(item.receipt)
        if entry is None or isinstance(item, Extend):
            continue
        if not isinstance(item, Ack):
            trail = queue.trail(entry.message_id)
            if ending_of(queue, entry, now, transition_of(item), trail).state in LIVE:
                continue
        out.add(item.receipt)


def check_copies(
    queue: Queue, settlements: Sequence[Settlement], now: int, step: int
) -> Iterator[None]:
    """Refuse the settlements if one commit cannot hold the dead-letter copies that they make."""
    if queue.policy.dead_letter_topic is None:
        return
    count = size = 0
    for position, item in enumerate(settlements, 1):
        if not position % step:
            yield
        entry = queue.claims.get(item.receipt)
        if entry is None or isinstance(item, Ack | Extend):
            continue
        ending = ending_of(queue, entry, now, transition_of(item), queue.trail(entry.message_id))
        if is_copied(queue.policy, ending.state, entry.message):
            count, size = count + 1, size + copied_bytes(entry.message)
            check_settle_copies(count, size)


def abort(settlements: Sequence[Settlement], bad: set[int]) -> tuple[Outcome, ...]:
    """The outcomes of a settle with publish that was aborted."""
    return tuple(
        Outcome(item.receipt, Verdict.STALE if position in bad else Verdict.ABORTED)
        for position, item in enumerate(settlements)
    )


def settle(
    queue: Queue,
    settlements: Sequence[Settlement],
    now: int,
    jitter: Jitter,
    step: int,
    out: list[Outcome],
    *,
    limited: bool,
) -> Iterator[None]:
    """Apply every settlement whose receipt is current, and add the outcomes to ``out``.

    With ``limited``, stops when the commit is full of dead-letter copies.
    """
    for begin in range(0, len(settlements), step):
        if begin:
            yield
        part = settlements[begin : begin + step]
        if settle_some(queue, part, now, jitter, out, limited=limited) < len(part):
            return


def settle_some(
    queue: Queue,
    settlements: Sequence[Settlement],
    now: int,
    jitter: Jitter,
    out: list[Outcome],
    *,
    limited: bool = True,
) -> int:
    """As ``settle``, in one step. Returns how many settlements it applied or found stale."""
    claims = queue.claims
    limited = limited and appends(queue.policy)
    if limited and queue.must_wait:
        return 0
    if queue.partitions is None:
        entries = _plain_acks(queue, settlements)
        if entries is not None:
            finish_many(queue, entries, now)
            out += [Outcome(item.receipt, Verdict.OK, State.DONE) for item in settlements]
            return len(settlements)
    for position, item in enumerate(settlements):
        if limited and queue.must_wait:
            return position
        entry = claims.get(item.receipt)
        if entry is not None:
            out.append(_settle_one(queue, entry, item, now, jitter))
        elif isinstance(item, Ack) and _was_acked(queue, item.receipt):
            out.append(Outcome(item.receipt, Verdict.OK, State.DONE))
        else:
            out.append(Outcome(item.receipt, Verdict.STALE))
    return len(settlements)


def _plain_acks(queue: Queue, settlements: Sequence[Settlement]) -> list[Entry] | None:
    """The entries, if all settlements are acks of distinct current claims without results."""
    claims = queue.claims
    entries: dict[Receipt, Entry] = {}
    for item in settlements:
        entry = claims.get(item.receipt)
        if entry is None or type(item) is not Ack or item.result is not None:
            return None
        entries[item.receipt] = entry
    return list(entries.values()) if len(entries) == len(settlements) else None


def _settle_one(queue: Queue, entry: Entry, item: Settlement, now: int, jitter: Jitter) -> Outcome:
    match item:
        case Ack():
            finish(queue, entry, now, item.result)
            return Outcome(item.receipt, Verdict.OK, State.DONE)
        case Extend():
            until = _extended(queue, entry, item, now)
            if until is None:
                return Outcome(item.receipt, Verdict.STALE)
            queue.extend(entry, until)
            return Outcome(item.receipt, Verdict.OK, State.IN_FLIGHT, until)
        case _:
            dead = queue.is_dead_letter
            asked = returned_by(item, queue.policy, entry.attempts, jitter, dead=dead)
            ending = give_back(queue, entry, now, *asked)
            return Outcome(item.receipt, Verdict.OK, ending.state, ending.due_at)


def _extended(queue: Queue, entry: Entry, item: Extend, now: int) -> int | None:
    return extended_deadline(queue.policy, entry.claimed_at, item.lease_ms, now)


def _was_acked(queue: Queue, receipt: Receipt) -> bool:
    """Whether this receipt acked a delivery whose done record is still kept."""
    read = queue.receipts.read(receipt)
    if read is None:
        return False
    number, claim_id, grant, attempt = read
    if number != queue.number or claim_id >= 1 << 64 or claim_id >> 60 > 4:
        return False
    done = queue.done.get(claim_id)
    if done is None or done.attempts != attempt:
        return False
    return grant > queue.trail(done.message_id).replayed_grant
