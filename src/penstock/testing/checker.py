"""The history checker: finds the laws that a history breaks.

- P1  every acknowledged message is in the log and in the queue's scan,
- P2  there is nothing that no client tried to publish, or that was refused; a batch whose
      reply was lost is stored completely or not at all,
- P3  a message has the same payload everywhere,
- P4  an idempotency id has one message,
- C1  a delivery is not granted while a claim on it is live, a live claim is honoured,
      receipts are never reused and grow,
- C2  attempts grow by one per grant, and grants that count stay within ``max_attempts``,
- C5  a drained queue has nothing live,
- S1  only the current receipt settles, and only once,
- S2  nothing is granted after it was acknowledged as done, failed or expired,
- S3  a scan finds a delivery in exactly one state, and in the one it was settled to.

The order of a history is the order in which clients observed events. A client may see its grant
late, after another client saw the next grant of the delivery: if the two claims overlapped, the
checker sorts them by grant number. It allows what it cannot know (the grants of a lost claim, a
lost settlement), and no more than that. It assumes that queues match every message and that replay
is not used.

In a queue that is ordered by partition, a claim may end early and uncounted when its
partition changes owners (O1). There, C1 is checked by what the receipts can do (S1).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from penstock.testing.history import (
    Claim,
    Claimed,
    Found,
    Granted,
    HistoryEvent,
    Logged,
    Publish,
    Published,
    Refused,
    Scanned,
    Settle,
    Settled,
    Unanswered,
)

__all__ = ["Violation", "check"]

#: Verbs that end a claim; ``extend`` does not.
_ENDING: Final = frozenset({"ack", "nack", "reject", "release"})
_SETTLED_STATES: Final = frozenset({"done", "failed", "expired"})


class Violation(Struct, frozen=True):
    """A law that the history breaks, and the position."""

    law: str
    what: str
    run: int
    order: int


def check(
    events: Iterable[HistoryEvent],
    *,
    max_attempts: Mapping[str, int],
    grant_number: Callable[[str], int] | None = None,
    ordered: Collection[str] = (),
    skew_ms: int = 0,
) -> list[Violation]:
    """Every violation found; ``grant_number``, if given, returns the order of a receipt.

    ``ordered`` names the queues that are ordered by partition; clocks of servers may differ by
    ``skew_ms``.
    """
    seen = list(_in_order(events))
    answered = {event.call for event in seen if isinstance(event, Claimed)}
    checker = _Checker(max_attempts, grant_number, ordered, skew_ms, answered)
    for event in seen if grant_number is None else _by_grant(seen, grant_number):
        checker.see(event)
    return checker.violations


def _in_order(events: Iterable[HistoryEvent]) -> Iterator[HistoryEvent]:
    """The events, which must be in the order in which they were recorded."""
    before = (0, 0)
    for event in events:
        if (event.run, event.order) <= before:
            raise ValueError(f"the history is not in order at {event}")
        before = event.run, event.order
        yield event


def _by_grant(
    events: Iterable[HistoryEvent], grant_number: Callable[[str], int]
) -> list[HistoryEvent]:
    """The events, with a grant that was seen late before the next grant of its delivery.

    It only moves as far back as its claim had begun.
    """
    moved: list[HistoryEvent] = []
    highest: dict[tuple[str, int], int] = {}
    for event in events:
        if not isinstance(event, Granted):
            moved.append(event)
            continue
        delivery, number = (event.queue, event.message), grant_number(event.receipt)
        place = len(moved)
        if number < highest.get(delivery, number):
            for index in range(len(moved) - 1, -1, -1):
                other = moved[index]
                if isinstance(other, Claim) and other.call == event.call:
                    break
                if (
                    isinstance(other, Granted)
                    and (other.queue, other.message) == delivery
                    and grant_number(other.receipt) > number
                ):
                    place = index
        moved.insert(place, event)
        highest[delivery] = max(number, highest.get(delivery, number))
    return moved


class _Batch:
    """What is known about one publish."""

    def __init__(self, begun: Publish) -> None:
        self.begun = begun
        self.messages: tuple[int, ...] | None = None
        self.refused = False


class _Grant:
    """What is known about one grant: when it may end, and whether it has ended."""

    def __init__(self, granted: Granted) -> None:
        self.granted = granted
        #: It does not lapse before this time.
        self.deadline = granted.deadline
        #: Settlements in progress or lost: each may have ended it.
        self.pending = 0
        #: The verb that ended it.
        self.verb: str | None = None


class _Delivery:
    """What is known about one delivery."""

    def __init__(self) -> None:
        self.last: _Grant | None = None
        #: Claims on the queue that were lost before the last grant.
        self.lost_before = 0
        #: Grants that may have been released, and so do not count.
        self.releases = 0
        #: The settled state that was acknowledged.
        self.final: str | None = None


class _Checker:
    def __init__(
        self,
        max_attempts: Mapping[str, int],
        grant_number: Callable[[str], int] | None,
        ordered: Collection[str],
        skew_ms: int,
        answered: Collection[int],
    ) -> None:
        self.violations: list[Violation] = []
        self._max_attempts = max_attempts
        self._grant_number = grant_number
        self._ordered = ordered
        self._skew_ms = skew_ms
        self._here: HistoryEvent = Scanned(scan=0, queue="")
        self._batches: dict[int, _Batch] = {}
        self._payload_of: dict[int, str] = {}
        self._deliveries: dict[tuple[str, int], _Delivery] = defaultdict(_Delivery)
        self._grants: dict[str, _Grant] = {}
        self._claims: dict[int, Claim] = {}
        #: The calls of claims that got a reply.
        self._answered = answered
        #: Claims without a reply, by queue.
        self._lost_claims: Counter[str] = Counter()
        self._settles: dict[int, tuple[Settle, bool]] = {}
        self._logged: dict[int, list[Logged]] = defaultdict(list)
        self._found: dict[tuple[int, str], list[Found]] = defaultdict(list)
        self._attempted: set[str] = set()
        self._message_of: dict[str, int] = {}

    def _broken(self, law: str, what: str) -> None:
        self.violations.append(Violation(law, what, self._here.run, self._here.order))

    def see(self, event: HistoryEvent) -> None:
        """Process the next event in order."""
        if event.run != self._here.run:
            self._lost_claims.update(claim.queue for claim in self._claims.values())
            self._claims = {}
        self._here = event
        match event:
            case Publish():
                self._batches[event.call] = _Batch(event)
                self._attempted.update(event.payloads)
            case Published():
                self._published(self._batches[event.call], event.messages)
            case Refused():
                self._batches[event.call].refused = True
            case Claim():
                self._claims[event.call] = event
            case Granted():
                self._granted(event)
            case Claimed():
                del self._claims[event.call]
            case Unanswered():
                self._lost_claims[self._claims.pop(event.call).queue] += 1
            case Settle():
                self._settle(event)
            case Settled():
                self._settled(event)
            case Logged():
                self._logged[event.scan].append(event)
                self._see_payload(event.message, event.payload)
            case Found():
                self._found[event.scan, event.queue].append(event)
            case Scanned():
                self._scanned(event)

    # -- publishing --------------------------------------------------------------------

    def _published(self, batch: _Batch, messages: tuple[int, ...]) -> None:
        batch.messages = messages
        for message, payload, id_ in zip(
            messages, batch.begun.payloads, batch.begun.ids, strict=True
        ):
            self._see_payload(message, payload)
            if id_ is not None and self._message_of.setdefault(id_, message) != message:
                self._broken("P4", f"id {id_} is message {self._message_of[id_]} and {message}")

    def _see_payload(self, message: int, payload: str) -> None:
        known = self._payload_of.get(message)
        if known is None and payload not in self._attempted:
            self._broken("P2", f"message {message} has a payload that was never published")
        elif known not in (None, payload):
            self._broken("P3", f"message {message} was {known} and reads {payload}")
        else:
            self._payload_of[message] = payload

    # -- claiming ----------------------------------------------------------------------

    def _granted(self, event: Granted) -> None:
        self._see_payload(event.message, event.payload)
        name = f"message {event.message} of {event.queue}"
        delivery = self._deliveries[event.queue, event.message]
        grant, before = _Grant(event), delivery.last
        if event.receipt in self._grants:
            self._broken("C1", f"{name} has receipt {event.receipt} for a second time")
        if delivery.final is not None:
            self._broken("S2", f"{name} was {delivery.final} and is granted again")
        if before is not None:
            self._follows(name, before, grant)
        lost = self._lost_claims[event.queue]
        attempts = 0 if before is None else before.granted.attempts
        hidden = event.attempts - attempts - 1
        known = lost - delivery.lost_before
        if not 0 <= hidden <= known + self._pending_claims(event.queue):
            self._broken("C2", f"{name} went from {attempts} to {event.attempts} attempts")
        else:
            # The broker may have released a claim whose caller had gone, uncounted.
            delivery.releases += hidden
        if event.queue in self._ordered:
            # An unsettled claim may have been released with its partition.
            delivery.releases += before is not None and before.verb is None
        if event.attempts - delivery.releases > self._max_attempts[event.queue]:
            self._broken("C2", f"{name} was granted {event.attempts} times")
        # A claim explains one grant, also if it is known to be lost only later.
        delivery.last, delivery.lost_before = grant, lost + max(0, hidden - max(0, known))
        self._grants[event.receipt] = grant

    def _pending_claims(self, queue: str) -> int:
        """Claims in progress that will get no reply, but may have granted something already."""
        return sum(
            claim.queue == queue and call not in self._answered
            for call, claim in self._claims.items()
        )

    def _follows(self, name: str, before: _Grant, grant: _Grant) -> None:
        number = self._grant_number
        if number is not None and number(grant.granted.receipt) <= number(before.granted.receipt):
            self._broken("C1", f"{name} has a receipt that is not above the one before")
        ended = before.verb is not None or before.pending > 0
        fenced = before.granted.queue in self._ordered
        early = before.deadline - grant.granted.claimed_at
        if not ended and not fenced and early > self._skew_ms:
            self._broken("C1", f"{name} is granted {early} ms before {before.granted.receipt} ends")

    # -- settling ----------------------------------------------------------------------

    def _settle(self, event: Settle) -> None:
        grant = self._grants.get(event.receipt)
        if grant is None:
            raise ValueError(f"no grant has the receipt {event.receipt}")
        # Overlapping calls may take effect in either order, so only what was known when the call
        # began can make it stale. Of the calls that end a claim, only one succeeds.
        was_stale = self._delivery_of(grant).last is not grant
        if event.verb not in _ENDING:
            was_stale = was_stale or grant.verb is not None
        self._settles[event.call] = event, was_stale
        if event.verb in _ENDING:
            grant.pending += 1
            self._delivery_of(grant).releases += event.verb == "release"
        else:
            grant.deadline = min(grant.deadline, event.at + event.lease_ms)

    def _settled(self, event: Settled) -> None:
        begun, was_stale = self._settles.pop(event.call)
        grant = self._grants[begun.receipt]
        delivery = self._delivery_of(grant)
        ends = begun.verb in _ENDING
        grant.pending -= ends
        if event.verdict != "ok":
            delivery.releases -= begun.verb == "release"
            live = delivery.last is grant and grant.verb is None and grant.pending == 0
            fenced = grant.granted.queue in self._ordered
            # ``aborted``: another receipt of the call was stale, and this one was not used.
            stale = event.verdict != "aborted"
            if stale and live and not fenced and event.at < grant.deadline:
                self._broken("C1", f"the live claim {begun.receipt} was called stale")
            return
        repeated_ack = begun.verb == "ack" and grant.verb == "ack"
        if was_stale or (ends and grant.verb is not None and not repeated_ack):
            self._broken("S1", f"{begun.verb} took effect with the stale {begun.receipt}")
        if not ends:
            grant.deadline = grant.deadline if event.until is None else event.until
            return
        grant.verb = begun.verb
        if event.state in _SETTLED_STATES:
            delivery.final = event.state

    def _delivery_of(self, grant: _Grant) -> _Delivery:
        return self._deliveries[grant.granted.queue, grant.granted.message]

    # -- contents of the store ---------------------------------------------------------

    def _scanned(self, event: Scanned) -> None:
        logged = {entry.message: entry.payload for entry in self._logged[event.scan]}
        self._check_log(logged)
        states: dict[int, str] = {}
        for found in self._found[event.scan, event.queue]:
            name = f"message {found.message} of {event.queue}"
            if found.message in states:
                self._broken("S3", f"{name} is {states[found.message]} and {found.state}")
            states[found.message] = found.state
            if found.message not in logged:
                self._broken("P2", f"{name} is not in the log")
            if event.drained and found.state not in _SETTLED_STATES:
                self._broken("C5", f"{name} is still {found.state}")
            final = self._deliveries[event.queue, found.message].final
            if final not in (None, found.state):
                self._broken("S3", f"{name} was settled to {final} and is {found.state}")
        for message in logged.keys() - states.keys():
            self._broken("S3", f"message {message} is in the log and in no state of {event.queue}")

    def _check_log(self, logged: dict[int, str]) -> None:
        copies = Counter(logged.values())
        calls: dict[str, set[int]] = defaultdict(set)
        id_of: dict[str, str] = {}
        for batch in self._batches.values():
            for message in batch.messages or ():
                if message not in logged:
                    self._broken("P1", f"the acknowledged message {message} is gone")
            for payload, id_ in zip(batch.begun.payloads, batch.begun.ids, strict=True):
                if not batch.refused:
                    calls[payload].add(batch.begun.call)
                if id_ is not None:
                    id_of[payload] = id_
        groups: dict[frozenset[int], list[str]] = defaultdict(list)
        for payload, callers in calls.items():
            groups[frozenset(callers)].append(payload)
        for group in groups.values():
            there = sum(payload in copies for payload in group)
            if 0 < there < len(group):
                self._broken("P2", f"{there} of a batch of {len(group)} are in the log")
        for payload, count in copies.items():
            if payload in id_of and count > 1:
                self._broken("P4", f"id {id_of[payload]} made {count} log entries")
            elif count > len(calls[payload]):
                self._broken("P2", f"payload {payload} is in the log {count} times")
