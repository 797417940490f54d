"""Failures grouped by what went wrong."""

from __future__ import annotations

import re
from typing import Final

import xxhash
from msgspec import Struct

from penstock.model.delivery import Snapshot
from penstock.model.message import MessageId

__all__ = ["FAILURE_SCAN", "NO_ERROR", "FailureGroup", "Failures", "error_pattern", "fingerprint"]

#: Failed deliveries that one call reads at most.
FAILURE_SCAN: Final = 100_000
#: The pattern of deliveries that failed without an error.
NO_ERROR: Final = "(no error was reported)"
#: Characters of an error that decide about its group.
_MAX_PATTERN: Final = 200

_TRACEBACK: Final = "Traceback (most recent call last)"

#: What differs between errors of the same cause, from the most to the least specific.
_VARYING: Final = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<n>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<id>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Failed deliveries whose errors have the same pattern."""

    fingerprint: str
    """Identifies the pattern in further calls."""
    error: str
    """The pattern: numbers, ids and quoted texts are replaced."""
    count: int
    first_at: int
    last_at: int
    """When the first and the last of them failed."""
    sample: tuple[Snapshot, ...]
    """The first of them, up to three."""
    ids: tuple[MessageId, ...] = ()
    """Their messages, if the call named the fingerprint."""


class Failures(Struct, frozen=True):
    """The groups, largest first, and how many failed deliveries were read for them."""

    groups: tuple[FailureGroup, ...]
    scanned: int
    more: bool
    """Whether the queue has further failed deliveries that were not read."""


def error_pattern(error: str | None) -> str:
    """An error without what varies: the text that its fingerprint is made of."""
    if not error or not error.strip():
        return NO_ERROR
    line = _telling_line(error.strip())[: 2 * _MAX_PATTERN]
    for varying, name in _VARYING:
        line = varying.sub(name, line)
    return line[:_MAX_PATTERN]


def _telling_line(error: str) -> str:
    """The first line; of a Python traceback, the one that names the exception."""
    lines = error.splitlines()
    if not lines[0].startswith(_TRACEBACK):
        return lines[0]
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    # The last traceback is of the exception that was raised. Its frames are indented.
    below = (line for line in lines[starts[-1] + 1 :] if line[:1].strip())
    return next(below, lines[0])


def fingerprint(pattern: str) -> str:
    """A short name for a pattern."""
    return xxhash.xxh3_64_hexdigest(pattern.encode("utf-8", "replace"))
