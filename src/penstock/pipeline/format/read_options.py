"""The options of a read of ``format("penstock")``, checked before anything is read.

Options that Spark's Kafka source has too mean the same here (``docs/pipeline.md`` lists them).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.errors import BadInput
from penstock.filters import parse
from penstock.model.limits import MAX_OFFSET, MAX_TIME_MS, check_name, check_queue_name, shown
from penstock.pipeline.format.amounts import parse_bytes, parse_ms
from penstock.pipeline.format.options import SERVER_OPTIONS, Given
from penstock.pipeline.format.positions import (
    EARLIEST,
    LATEST,
    At,
    PerTopic,
    Position,
    parse_position,
    parse_times,
)
from penstock.pipeline.remote import Server

__all__ = [
    "READ_OPTIONS",
    "SourceOptions",
    "check_batch",
    "check_stream",
    "literal_prefix",
    "source_options",
]

#: Reads the text of an option; gets its name for errors.
Parser: TypeAlias = Callable[[str, str], int]

_RANGE: Final = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "entriesPerPartition",
    "maxRecordsPerPartition",
    "minPartitions",
    "failOnDataLoss",
)
_TOPICS: Final = ("topic", "subscribe", "subscribePattern", "where", "payload")
_BY_TOPIC: Final = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
_SHAPES: Final = ("includeHeaders", "keyType")
_TRIGGER: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_STATE: Final = ("queue", "topic", "where", "payload")
_EVERY: Final = (*SERVER_OPTIONS, "table", "compression")
#: The options of each table.
READ_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "log": (*_EVERY, *_RANGE, *_TOPICS, *_BY_TOPIC, *_SHAPES, *_TRIGGER),
    "deliveries": (*_EVERY, *_STATE),
    "failed": (*_EVERY, *_STATE),
    "history": (*_EVERY, *_RANGE, "queue"),
}
_COMPRESSIONS: Final = ("none", "lz4", "zstd")
#: The limit of entries per partition or micro-batch: far below 64 bits, above any log.
_MAX_ENTRIES: Final = MAX_OFFSET
#: More tasks than a large cluster has cores.
_MAX_PARTITIONS: Final = 10_000
#: Kafka's default for ``maxTriggerDelay``.
_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
#: Characters that a regular expression does not match literally.
_SPECIAL: Final = frozenset(".^$*+?{}[]\\|()")
#: Characters after which the one before may be missing.
_OPTIONAL: Final = frozenset("*?{")


class SourceOptions(Struct, frozen=True, kw_only=True):
    """The table to read, and how."""

    server: Server
    table: str = "log"
    queue: str | None = None
    """None: all of them."""
    where: str | None = None
    """The combined filter of the topics and ``where``, which the server evaluates."""
    pattern: str | None = None
    """A regular expression that whole names of topics match."""
    start: Position = EARLIEST
    end: Position = LATEST
    per_partition: int | None = None
    """About so many entries per partition; None: a few tens of megabytes."""
    most_per_partition: int | None = None
    least_partitions: int | None = None
    per_trigger: int | None = None
    """Entries per micro-batch; None: all available."""
    bytes_per_trigger: int | None = None
    least_per_trigger: int | None = None
    trigger_delay_ms: int = _TRIGGER_DELAY_MS
    payload: bool = True
    kafka_headers: bool | None = None
    """Headers as in Spark's Kafka source, or with False none; None: typed."""
    binary_keys: bool = False
    fail_on_data_loss: bool = True
    compression: str = "none"


#: Options of a stream, and the field that shows whether they were given.
_OF_STREAMS: Final = {
    "maxOffsetsPerTrigger": "per_trigger",
    "maxBytesPerTrigger": "bytes_per_trigger",
    "minOffsetsPerTrigger": "least_per_trigger",
}


def check_batch(options: SourceOptions) -> None:
    """Raise ``BadInput`` for an option that only streams have."""
    for name, field in _OF_STREAMS.items():
        if getattr(options, field) is not None:
            raise BadInput(f"{name} is for readStream.", field=name)


def check_stream(options: SourceOptions) -> None:
    """Raise ``BadInput`` for an option that only batch reads have."""
    if options.end != LATEST:
        raise BadInput(
            "endingOffsets and endingTimestamp are for read; a stream ends with its query.",
            field="endingOffsets",
        )


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a read, checked for consistency and against the table."""
    given = Given(options)
    table = given.choice("table", READ_OPTIONS, "log")
    given.refuse_others(READ_OPTIONS[table], f"The table {table}")
    topics, pattern = _topics(given), _pattern(given)
    read = SourceOptions(
        server=given.server(),
        table=table,
        queue=_queue(given),
        where=_where(given, topics, pattern),
        pattern=pattern,
        start=_start(given),
        end=_end(given),
        per_partition=given.number("entriesPerPartition", 1, _MAX_ENTRIES),
        most_per_partition=given.number("maxRecordsPerPartition", 1, _MAX_ENTRIES),
        least_partitions=given.number("minPartitions", 1, _MAX_PARTITIONS),
        per_trigger=given.number("maxOffsetsPerTrigger", 1, _MAX_ENTRIES),
        bytes_per_trigger=_parsed(given, "maxBytesPerTrigger", parse_bytes),
        least_per_trigger=given.number("minOffsetsPerTrigger", 1, _MAX_ENTRIES),
        trigger_delay_ms=_delay(given),
        payload=given.truth("payload", table == "log"),
        kafka_headers=given.truth("includeHeaders", False) if given.has("includeHeaders") else None,
        binary_keys=given.choice("keyType", ("string", "binary"), "string") == "binary",
        fail_on_data_loss=given.truth("failOnDataLoss", True),
        compression=given.choice("compression", _COMPRESSIONS, "none"),
    )
    _check_positions(read, topics)
    return read


def _parsed(given: Given, name: str, parse_text: Parser) -> int | None:
    text = given.text(name)
    return None if text is None else parse_text(name, text)


def _delay(given: Given) -> int:
    delay = _parsed(given, "maxTriggerDelay", parse_ms)
    if delay is None:
        return _TRIGGER_DELAY_MS
    if not given.has("minOffsetsPerTrigger"):
        raise BadInput("maxTriggerDelay requires minOffsetsPerTrigger.", field="maxTriggerDelay")
    return delay


# -- topics ----------------------------------------------------------------------------


def _queue(given: Given) -> str | None:
    queue = given.text("queue")
    return None if queue is None else check_queue_name(queue)


def _topics(given: Given) -> list[str] | None:
    """The names in ``topic`` or ``subscribe``."""
    chosen = [name for name in ("topic", "subscribe", "subscribePattern") if given.has(name)]
    if len(chosen) > 1:
        raise BadInput(f"Only one of {' and '.join(chosen)} can be set.", field=chosen[1])
    text = given.text("topic") if given.has("topic") else given.text("subscribe")
    if text is None:
        return None
    return [check_name(name.strip(), "topic") for name in text.split(",")]


def _pattern(given: Given) -> str | None:
    text = given.text("subscribePattern")
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise BadInput(
                f"subscribePattern is {shown(text)}, no regular expression: {error}.",
                field="subscribePattern",
            ) from error
    return text


def _where(given: Given, topics: list[str] | None, pattern: str | None) -> str | None:
    """The conjunction of the topics and ``where``."""
    parts: list[str] = []
    if topics is not None:
        names = ", ".join(f"'{name}'" for name in topics)
        parts.append(f"topic IN ({names})")
    prefix = "" if pattern is None else literal_prefix(pattern)
    if prefix:
        quoted = prefix.replace("'", "''")
        parts.append(f"starts_with(topic, '{quoted}')")
    where = given.text("where")
    if where is not None:
        # Parse it alone first, so that an error points into the user's text.
        parse(where)
        parts.append(where)
    if not parts:
        return None
    return parse(parts[0] if len(parts) == 1 else f"({parts[0]}) AND ({parts[1]})").text


def literal_prefix(pattern: str) -> str:
    """Characters with which all matches begin; the server then reads no other topics."""
    if "|" in pattern:
        return ""
    prefix = ""
    for index, letter in enumerate(pattern):
        if letter in _SPECIAL:
            return prefix[:-1] if letter in _OPTIONAL else prefix
        prefix = pattern[: index + 1]
    return prefix


# -- positions -------------------------------------------------------------------------


def _start(given: Given) -> Position:
    strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", LATEST), "error")
    or_latest = strategy == LATEST
    time = given.number("startingTimestamp", 0, MAX_TIME_MS)
    if time is not None:
        return At(time, or_latest)
    by_topic = given.text("startingOffsetsByTimestamp")
    if by_topic is not None:
        return parse_times("startingOffsetsByTimestamp", by_topic, or_latest=or_latest)
    text = given.text("startingOffsets")
    if text is None:
        return EARLIEST
    return parse_position("startingOffsets", text, (EARLIEST, LATEST))


def _end(given: Given) -> Position:
    time = given.number("endingTimestamp", 0, MAX_TIME_MS)
    if time is not None:
        return At(time, or_latest=True)
    by_topic = given.text("endingOffsetsByTimestamp")
    if by_topic is not None:
        return parse_times("endingOffsetsByTimestamp", by_topic, or_latest=True)
    text = given.text("endingOffsets")
    if text is None:
        return LATEST
    return parse_position("endingOffsets", text, (EARLIEST, LATEST))


def _check_positions(read: SourceOptions, topics: list[str] | None) -> None:
    if isinstance(read.start, int) and isinstance(read.end, int) and read.start > read.end:
        raise BadInput("startingOffsets is above endingOffsets.", field="startingOffsets")
    for position in (read.start, read.end):
        if isinstance(position, PerTopic):
            named = {topic for topic, _ in position.topics}
            if topics is None or named != set(topics):
                raise BadInput(
                    f"Positions by topic are for {', '.join(sorted(named))}; subscribe has to name "
                    "exactly these topics.",
                    field="subscribe",
                )
