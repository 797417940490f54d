"""Histories of concurrent clients: the calls that each began, and the replies it got.

A client records a call before it makes it, and the reply when it has it. A line is one
``os.write``, so a client that is killed leaves whole lines, and every reply it saw: a kill does not
lose what the kernel already has, and writes of up to 4 KiB to a pipe are atomic. A call without an
end has an unknown outcome: it may have taken effect.

Payloads are identified by a digest and must be unique per message. ``checker`` finds the laws that
a history breaks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
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
    "Unanswered",
    "digest",
    "read_history",
]

#: The largest atomic write to a pipe (PIPE_BUF).
MAX_LINE_BYTES: Final = 4096


def digest(payload: bytes) -> str:
    """The digest that identifies a payload in a history."""
    return blake2b(payload, digest_size=8).hexdigest()


# -- events: ``call`` connects the beginning and end of a call -------------------------------


class _Event(Struct, frozen=True, kw_only=True, tag=True):
    run: int = 0
    """Which start of the process wrote the event."""
    order: int = 0
    """Grows by one per event inside a run. The recorder sets both fields."""


class Publish(_Event, frozen=True, kw_only=True):
    """About to publish one batch."""

    call: int
    payloads: tuple[str, ...]
    ids: tuple[str | None, ...]
    """The idempotency ids, one per payload."""


class Published(_Event, frozen=True, kw_only=True):
    """The batch was acknowledged."""

    call: int
    messages: tuple[int, ...]


class Refused(_Event, frozen=True, kw_only=True):
    """The batch was refused with an error, so nothing was stored."""

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
    """The whole reply of a claim has been recorded."""

    call: int


class Unanswered(_Event, frozen=True, kw_only=True):
    """The claim failed, and may have been granted deliveries.

    A claim that never ends is treated the same, from the next run on.
    """

    call: int


class Settle(_Event, frozen=True, kw_only=True):
    """About to settle one claim."""

    call: int
    receipt: str
    verb: str
    at: int
    lease_ms: int = 0
    """For an extend."""


class Settled(_Event, frozen=True, kw_only=True):
    """The outcome of a settlement."""

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
    """The scan is complete: what it did not find does not exist."""

    scan: int
    queue: str
    drained: bool = False
    """Nothing is live any more: every acknowledged message was delivered or failed."""


HistoryEvent: TypeAlias = (
    Publish
    | Published
    | Refused
    | Claim
    | Granted
    | Claimed
    | Unanswered
    | Settle
    | Settled
    | Logged
    | Found
    | Scanned
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[HistoryEvent] = msgspec.json.Decoder(HistoryEvent)


class Recorder:
    """Writes events to a pipe, or a file opened with O_APPEND, one line per write."""

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
            raise ValueError("an event is longer than an atomic write to a pipe")
        if os.write(self._descriptor, line) != len(line):
            raise OSError("an event was only partially written")


def read_history(lines: Iterable[bytes]) -> Iterator[HistoryEvent]:
    """Decode a history, line by line."""
    return map(_decoder.decode, lines)
