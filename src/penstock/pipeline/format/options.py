"""The options of ``format("penstock")``, checked before anything is read.

Spark passes options as text, in the case in which they were written. An option that is unknown
or not valid for the table is refused with its name (E1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.client.address import parse_address
from penstock.client.credentials import check_source
from penstock.errors import BadInput
from penstock.filters import parse
from penstock.model.limits import MAX_OFFSET, check_name, check_queue_name, shown
from penstock.pipeline.remote import Server

__all__ = [
    "EARLIEST",
    "LATEST",
    "SERVER_OPTIONS",
    "Given",
    "Position",
    "SourceOptions",
    "is_consumer",
    "source_options",
]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
#: An offset, or one of the two ends of the log.
Position: TypeAlias = int | str

#: The options that every use of the format has.
SERVER_OPTIONS: Final = ("url", "credential", "ca")
_RANGE: Final = ("startingOffsets", "endingOffsets", "entriesPerPartition", "failOnDataLoss")
_STATE: Final = ("queue", "topic", "where", "payload")
#: Additional options per table.
_TABLES: Final[dict[str, tuple[str, ...]]] = {
    "log": (*_RANGE, "topic", "where", "payload", "maxOffsetsPerTrigger"),
    "deliveries": _STATE,
    "failed": _STATE,
    "history": (*_RANGE, "queue"),
}
_COMPRESSIONS: Final = ("none", "lz4", "zstd")
_TRUTHS: Final = {"true": True, "false": False}
#: The limit of entries per partition or micro-batch: far below 64 bits, above any log.
_MAX_ENTRIES: Final = MAX_OFFSET


class Given:
    """The given options, by name in any case; each getter returns a typed value or raises."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def refuse_others(self, known: Iterable[str], whose: str) -> None:
        """Raise ``BadInput`` for any option that is not in ``known``."""
        names = {name.lower(): name for name in known}
        for name in self._options:
            if name not in names:
                raise BadInput(f"{whose} has no option {shown(name)}{_hint(name, names)}.")

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name.lower() in self._options

    def text(self, name: str) -> str | None:
        """The option's text; None if it was not given."""
        return self._options.get(name.lower())

    def needed(self, name: str) -> str:
        """The option's text; raises ``BadInput`` if it was not given."""
        value = self.text(name)
        if not value:
            raise BadInput(f"The option {name} is missing.", field=name)
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of the given words, in any case."""
        value = (self.text(name) or default).lower()
        if value not in choices:
            allowed = ", ".join(choices)
            raise BadInput(f"{name} is {shown(value)}; it is one of {allowed}.", field=name)
        return value

    def truth(self, name: str, default: bool) -> bool:
        """``true`` or ``false``."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUTHS:
            raise BadInput(f"{name} is {shown(value)}; it is true or false.", field=name)
        return _TRUTHS[value.lower()]

    def number(self, name: str, least: int, most: int) -> int | None:
        """A whole number within limits; None if it was not given."""
        value = self.text(name)
        return None if value is None else _number(name, value, least, most)

    def position(self, name: str, words: tuple[str, ...], default: Position) -> Position:
        """An offset, or one of ``words``."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() in words:
            return value.lower()
        if not value.isascii() or not value.isdigit():
            allowed = " or ".join((*words, "an offset"))
            raise BadInput(f"{name} is {shown(value)}; it is {allowed}.", field=name)
        return _number(name, value, 0, MAX_OFFSET)

    def server(self) -> Server:
        """The server that the options name. Whether it answers shows on the first call."""
        url = self.needed("url")
        parse_address(url)
        credential = self.text("credential")
        if credential is not None:
            check_source(credential)
        return Server(url, credential, self.text("ca"))


def _number(name: str, value: str, least: int, most: int) -> int:
    # Twenty digits exceed any limit here, and stay below Python's limit for int().
    good = value.isascii() and value.isdigit() and len(value) <= 20
    if not good or not least <= int(value) <= most:
        raise BadInput(
            f"{name} is {shown(value)}; it is a whole number from {least} to {most}.",
            field=name,
            limit=most,
        )
    return int(value)


def _hint(name: str, names: Mapping[str, str]) -> str:
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {names[close[0]]}?"
    return f"; it has {', '.join(sorted(names.values()))}"


class SourceOptions(Struct, frozen=True, kw_only=True):
    """The table to read, and how."""

    server: Server
    table: str = "log"
    queue: str | None = None
    """None: all of them."""
    where: str | None = None
    """The combined filter of ``topic`` and ``where``, which the server evaluates."""
    start: Position = EARLIEST
    end: Position = LATEST
    per_partition: int | None = None
    """Entries per partition; None: a few tens of megabytes."""
    per_trigger: int | None = None
    """Entries per micro-batch; None: all available."""
    payload: bool = True
    fail_on_data_loss: bool = True
    compression: str = "none"

    def refuse(self, *names: str, why: str) -> None:
        """Raise ``BadInput`` if any of these options was given: this kind of read lacks them."""
        usual = SourceOptions(server=self.server)
        for name, field in (("maxOffsetsPerTrigger", "per_trigger"), ("endingOffsets", "end")):
            if name in names and getattr(self, field) != getattr(usual, field):
                raise BadInput(f"{name} {why}.", field=name)


def is_consumer(given: Given) -> bool:
    """Whether these options select a queue to consume: ``queue`` without ``table``."""
    return given.has("queue") and not given.has("table")


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a read, checked for consistency and against the table."""
    given = Given(options)
    table = given.choice("table", _TABLES, "log")
    known = (*SERVER_OPTIONS, "table", "compression", *_TABLES[table])
    given.refuse_others(known, f"The table {table}")
    read = SourceOptions(
        server=given.server(),
        table=table,
        queue=_queue(given),
        where=_where(given),
        start=given.position("startingOffsets", (EARLIEST, LATEST), EARLIEST),
        end=given.position("endingOffsets", (LATEST,), LATEST),
        per_partition=given.number("entriesPerPartition", 1, _MAX_ENTRIES),
        per_trigger=given.number("maxOffsetsPerTrigger", 1, _MAX_ENTRIES),
        payload=given.truth("payload", table == "log"),
        fail_on_data_loss=given.truth("failOnDataLoss", True),
        compression=given.choice("compression", _COMPRESSIONS, "none"),
    )
    if isinstance(read.start, int) and isinstance(read.end, int) and read.start > read.end:
        raise BadInput("startingOffsets is above endingOffsets.", field="startingOffsets")
    return read


def _queue(given: Given) -> str | None:
    queue = given.text("queue")
    return None if queue is None else check_queue_name(queue)


def _where(given: Given) -> str | None:
    """The conjunction of ``topic`` and ``where``."""
    parts: list[str] = []
    topics = given.text("topic")
    if topics is not None:
        names = [f"'{check_name(name.strip(), 'topic')}'" for name in topics.split(",")]
        parts.append(f"topic IN ({', '.join(names)})")
    where = given.text("where")
    if where is not None:
        # Parse it alone first, so that an error points into the user's text.
        parse(where)
        parts.append(where)
    if not parts:
        return None
    return parse(parts[0] if len(parts) == 1 else f"({parts[0]}) AND ({parts[1]})").text
