"""Histories of concurrent clients, and a checker that says which law one breaks.

A client records what it is about to do, does it, and records what it was told. A line is
one ``os.write``, so a client that is killed leaves whole lines behind, and every reply that
it saw (a kill does not lose what the kernel already has; a pipe takes a line of up to 4 KiB
in one piece). A call without an end has an unknown outcome: it may have taken effect.

Payloads are named by a digest and have to be unique, one a message. Checked are

- P1  every acknowledged message is in the log and in the queue's scan,
- P2  nothing is there that nobody tried to publish, or that was refused; a batch whose
      reply was lost is there whole or not at all,
- P3  a message has one payload, wherever it is seen,
- P4  an idempotency id has one message,
- C1  a delivery is not granted while a claim on it is live, a live claim is honoured,
      receipts never come again and grow,
- C2  attempts rise by one a grant, and grants that count stay within ``max_attempts``,
- S1  only the current receipt settles, and once,
- S2  nothing is granted after its acknowledged ack or reject,
- S3  a scan finds a delivery in exactly one state, and in the one it was settled to.

The order of the lines is the order in which clients saw things happen. What the checker
does not know (a lost claim's grants, a lost settlement) it allows, and no more than that.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

__all__ = [
    "MAX_LINE_BYTES",
    "Claim",
    "Claimed",
    "Found",
    "Granted",
    "HistoryEvent",
    "Logged",
    "Publish",
    "Published",
    "Recorder",
    "Refused",
    "Scanned",
    "Settle",
    "Settled",
    "Violation",
    "check",
    "digest",
    "read_history",
]

#: What a pipe takes in one piece (PIPE_BUF).
MAX_LINE_BYTES: Final = 4096
#: Verbs that end a claim; ``extend`` does not.
_ENDING: Final = frozenset({"ack", "nack", "reject", "release"})
_FINAL_STATES: Final = {"ack": "done", "reject": "failed"}


def digest(payload: bytes) -> str:
    """The name that a payload has in a history."""
    return blake2b(payload, digest_size=8).hexdigest()


# -- events: ``call`` joins the beginning of a call to its end -------------------------------


class _Event(Struct, frozen=True, kw_only=True, tag=True):
    run: int = 0
    """Which start of the process wrote it."""
    order: int = 0
    """Rises by one an event inside a run; the recorder sets both."""


class Publish(_Event, frozen=True, kw_only=True):
    """About to publish one batch."""

    call: int
    payloads: tuple[str, ...]
    ids: tuple[str | None, ...]
    """The idempotency ids, one a payload."""


class Published(_Event, frozen=True, kw_only=True):
    """The batch was acknowledged."""

    call: int
    messages: tuple[int, ...]


class Refused(_Event, frozen=True, kw_only=True):
    """The batch was refused with an error that means that nothing was stored."""

    call: int


class Claim(_Event, frozen=True, kw_only=True):
    """About to claim."""

    call: int
    queue: str


class Granted(_Event, frozen=True, kw_only=True):
    """One delivery of a claim's reply."""

    call: int
    queue: str
    message: int
    payload: str
    receipt: str
    attempts: int
    claimed_at: int
    deadline: int
    consumer: str


class Claimed(_Event, frozen=True, kw_only=True):
    """The whole reply of a claim is recorded."""

    call: int


class Settle(_Event, frozen=True, kw_only=True):
    """About to settle one claim."""

    call: int
    receipt: str
    verb: str
    at: int
    lease_ms: int = 0
    """Of an extend."""


class Settled(_Event, frozen=True, kw_only=True):
    """What became of it."""

    call: int
    verdict: str
    state: str | None
    until: int | None
    at: int


class Logged(_Event, frozen=True, kw_only=True):
    """One entry that a scan of the whole log found."""

    scan: int
    message: int
    payload: str


class Found(_Event, frozen=True, kw_only=True):
    """One delivery that a scan of a queue found."""

    scan: int
    queue: str
    message: int
    state: str
    attempts: int


class Scanned(_Event, frozen=True, kw_only=True):
    """The scan is complete: what it did not find was not there."""

    scan: int
    queue: str
    drained: bool = False
    """Nothing is live any more: every acknowledged message was delivered or has failed."""


HistoryEvent: TypeAlias = (
    Publish
    | Published
    | Refused
    | Claim
    | Granted
    | Claimed
    | Settle
    | Settled
    | Logged
    | Found
    | Scanned
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[HistoryEvent] = msgspec.json.Decoder(HistoryEvent)


class Recorder:
    """Writes events to a pipe, or a file opened with O_APPEND, one line a write."""

    def __init__(self, descriptor: int, run: int) -> None:
        self._descriptor = descriptor
        self._run = run
        self._order = 0
        self._calls = 0

    def call(self) -> int:
        """A number for the next call, unique in the history."""
        self._calls += 1
        return self._run << 32 | self._calls

    def record(self, event: HistoryEvent) -> None:
        self._order += 1
        stamped = msgspec.structs.replace(event, run=self._run, order=self._order)
        line = _encoder.encode(stamped) + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise ValueError("an event is longer than a pipe takes in one piece")
        if os.write(self._descriptor, line) != len(line):
            raise OSError("an event was written in part")


def read_history(lines: Iterable[bytes]) -> Iterator[HistoryEvent]:
    """Decode a history, line by line."""
    return map(_decoder.decode, lines)


# -- the checker ---------------------------------------------------------------------------


class Violation(Struct, frozen=True):
    """A law that the history breaks, and where."""

    law: str
    what: str
    run: int
    order: int


def check(
    events: Iterable[HistoryEvent],
    *,
    max_attempts: Mapping[str, int],
    grant_number: Callable[[str], int] | None = None,
) -> list[Violation]:
    """Every violation found; ``grant_number`` gives a receipt's place, where it has one."""
    checker = _Checker(max_attempts, grant_number)
    for event in events:
        checker.see(event)
    checker.finish()
    return checker.violations


class _Batch:
    """What is known of one publish."""

    def __init__(self, begun: Publish) -> None:
        self.begun = begun
        self.messages: tuple[int, ...] | None = None
        self.refused = False


class _Grant:
    """What is known of one grant: when it may end, and whether it has."""

    def __init__(self, granted: Granted) -> None:
        self.granted = granted
        #: Not before this does it lapse.
        self.deadline = granted.deadline
        #: Not after this does it lapse.
        self.latest = granted.deadline
        self.may_be_over = False
        self.over = False
        self.verb: str | None = None


class _Delivery:
    """What is known of one delivery."""

    def __init__(self) -> None:
        self.last: _Grant | None = None
        #: Grants that may have been given without anybody seeing the reply.
        self.hidden = 0
        self.releases = 0
        self.final: str | None = None


class _Checker:
    def __init__(
        self, max_attempts: Mapping[str, int], grant_number: Callable[[str], int] | None
    ) -> None:
        self.violations: list[Violation] = []
        self._max_attempts = max_attempts
        self._grant_number = grant_number
        self._here: HistoryEvent = Scanned(scan=0, queue="")
        self._batches: dict[int, _Batch] = {}
        self._payload_of: dict[int, str] = {}
        self._deliveries: dict[tuple[str, int], _Delivery] = defaultdict(_Delivery)
        self._grants: dict[str, _Grant] = {}
        self._claims: dict[int, Claim] = {}
        #: Claims without an end, by queue, in this run and in all before it.
        self._lost_claims: Counter[str] = Counter()
        self._settles: dict[int, Settle] = {}
        self._logged: dict[int, list[Logged]] = defaultdict(list)
        self._found: dict[tuple[int, str], list[Found]] = defaultdict(list)
        self._seen_payloads: set[str] = set()

    def _broken(self, law: str, what: str) -> None:
        self.violations.append(Violation(law, what, self._here.run, self._here.order))

    def see(self, event: HistoryEvent) -> None:
        """Take the next event in order."""
        if (event.run, event.order) <= (self._here.run, self._here.order):
            raise ValueError(f"the history is not in order at {event}")
        if event.run != self._here.run:
            self._lost_claims.update(claim.queue for claim in self._claims.values())
            self._claims = {}
        self._here = event
        match event:
            case Publish():
                self._batches[event.call] = _Batch(event)
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
            case Settle():
                self._settle(event)
            case Settled():
                self._settled(self._settles.pop(event.call), event)
            case Logged():
                self._logged[event.scan].append(event)
                self._see_payload(event.message, event.payload)
            case Found():
                self._found[event.scan, event.queue].append(event)
            case Scanned():
                self._scanned(event)
