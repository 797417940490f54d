"""Where a read of the log begins and ends: offsets, times, or one of either per topic.

The options have the names and the precedence of Spark's Kafka source. Penstock has one log for all
topics, so a position per topic is a bound for the entries of that topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from penstock.errors import BadInput
from penstock.model.limits import MAX_OFFSET, MAX_TIME_MS, check_name, shown
from penstock.pipeline.remote import Remote

__all__ = [
    "EARLIEST",
    "LATEST",
    "At",
    "Bounds",
    "PerTopic",
    "Position",
    "lower_bounds",
    "parse_position",
    "parse_times",
    "upper_bounds",
]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
#: How Kafka's JSON writes the two ends of a partition.
_WORDS: Final = {-2: EARLIEST, -1: LATEST}


class At(Struct, frozen=True):
    """The first entry that was published at a time or later."""

    ms: int
    or_latest: bool = False
    """Without such an entry, the end of the log is meant; otherwise that is an error."""


class PerTopic(Struct, frozen=True):
    """A position for each topic that is read."""

    topics: tuple[tuple[str, int | str | At], ...]


#: An offset, one of the two ends of the log, a time, or one of these per topic.
Position: TypeAlias = int | str | At | PerTopic


class Bounds(Struct, frozen=True):
    """The offset where everything begins or ends, and the bounds of single topics."""

    offset: int
    topics: Mapping[str, int] | None = None


# -- parsing ---------------------------------------------------------------------------


def parse_position(name: str, text: str, words: tuple[str, ...]) -> Position:
    """An offset, one of ``words``, or JSON with one of these per topic."""
    if text.lstrip().startswith("{"):
        return PerTopic(
            tuple((topic, _offset(name, value, words)) for topic, value in _pairs(name, text))
        )
    if text.lower() in words:
        return text.lower()
    if not text.isascii() or not text.isdigit():
        allowed = " or ".join((*words, "an offset"))
        raise BadInput(f"{name} is {shown(text)}; it is {allowed}, or JSON by topic.", field=name)
    return _within(name, int(text[:20]), MAX_OFFSET)


def parse_times(name: str, text: str, *, or_latest: bool) -> PerTopic:
    """JSON with a time in epoch milliseconds per topic."""
    found: list[tuple[str, At]] = []
    for topic, value in _pairs(name, text):
        if type(value) is not int:
            raise BadInput(f"{name}: {shown(str(value))} is not epoch milliseconds.", field=name)
        found.append((topic, At(_within(name, value, MAX_TIME_MS), or_latest)))
    return PerTopic(tuple(found))


def _pairs(name: str, text: str) -> Iterable[tuple[str, Any]]:
    """Topics and values of ``{"topic": value}``, or of Kafka's ``{"topic": {"0": value}}``."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{name} is not JSON: {error}.", field=name) from error
    if not isinstance(given, dict) or not given:
        raise BadInput(f'{name} has to be like {{"topic": 23}}.', field=name)
    for topic, value in given.items():
        check_name(topic, "topic")
        values = list(value.values()) if isinstance(value, dict) else [value]
        if not values or values.count(values[0]) != len(values):
            raise BadInput(
                f"{name}: a topic has one log, so {topic!r} needs one value, not one per "
                "partition.",
                field=name,
            )
        yield topic, values[0]


def _offset(name: str, value: object, words: tuple[str, ...]) -> int | str:
    word = _WORDS.get(value, value) if isinstance(value, int) else value
    if isinstance(word, str) and word.lower() in words:
        return word.lower()
    if type(value) is not int or value < 0:
        allowed = ", ".join((*words, "-2 or -1 for these")) if words else ""
        raise BadInput(
            f"{name}: {shown(str(value))} is not an offset; it may be {allowed}.", field=name
        )
    return _within(name, value, MAX_OFFSET)


def _within(name: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise BadInput(
            f"{name} is {value}; it is a whole number from 0 to {most}.", field=name, limit=most
        )
    return value


# -- looking up ------------------------------------------------------------------------


def lower_bounds(remote: Remote, position: Position) -> Bounds:
    """Where reading begins."""
    topics = _topics(remote, position, "startingTimestamp")
    if isinstance(topics, int):
        return Bounds(topics)
    return Bounds(min(topics.values()), topics)


def upper_bounds(remote: Remote, position: Position) -> Bounds:
    """Where reading ends; an offset is exclusive."""
    topics = _topics(remote, position, "endingTimestamp")
    if isinstance(topics, int):
        return Bounds(topics)
    return Bounds(max(topics.values()), topics)


def _topics(remote: Remote, position: Position, name: str) -> int | dict[str, int]:
    if isinstance(position, PerTopic):
        return {topic: _locate(remote, one, name) for topic, one in position.topics}
    return _locate(remote, position, name)


def _locate(remote: Remote, position: int | str | At, name: str) -> int:
    """The current offset of a position."""
    match position:
        case int():
            return position
        case At():
            return _at(remote, position, name)
        case str() if position == EARLIEST:
            return int(remote.ask(lambda q: q.log_start()))
        case str():
            assert position == LATEST
            return int(remote.ask(lambda q: q.log_end()))


def _at(remote: Remote, position: At, name: str) -> int:
    """The first entry published at a time or later, found by bisection."""
    # First the end: entries that are published meanwhile are not looked at.
    high = end = int(remote.ask(lambda q: q.log_end()))
    low = int(remote.ask(lambda q: q.log_start()))
    while low < high:
        middle = (low + high) // 2
        page = remote.ask(lambda q, middle=middle: q.read_log(middle, limit=1))  # type: ignore[misc]
        # The first entry at or above the middle may also be above ``high``.
        message = page.entries[0].message if page.entries else None
        if message is None or message.offset >= high or message.published_at >= position.ms:
            high = middle
        else:
            low = int(message.offset) + 1
    if low >= end and not position.or_latest:
        raise BadInput(
            f"No entry was published at {position.ms} or later. To begin at the end of the log, "
            "set startingOffsetsByTimestampStrategy to latest.",
            field=name,
        )
    return low
