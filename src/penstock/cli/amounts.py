"""Arguments with a format of their own: durations, headers, positions in the log.

Anything that does not parse is a usage error (exit 2) that shows valid forms. A bare number is
refused if a unit is missing: ``--lease 30`` could be off by a factor of a thousand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

import click
import msgspec

from penstock.model.message import HeaderValue
from penstock.model.queue import Start

__all__ = [
    "ALL",
    "COUNT_OR_NONE",
    "DURATION",
    "DURATION_OR_NONE",
    "HEADER",
    "INTERVAL",
    "LABEL",
    "LABEL_OR_NONE",
    "NO_LIMIT",
    "PERIOD",
    "SECONDS",
    "START",
    "TIME",
    "Parsed",
    "is_count",
    "to_duration_ms",
    "to_header",
    "to_time",
]

T = TypeVar("T")

#: What the types ``…_OR_NONE`` make of ``none``. None means that the option was not given.
NO_LIMIT: Final = "none"
#: The period of a report that is about everything.
ALL: Final = "all"
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")
#: Fits into 63 bits. ASCII only: str.isdigit() accepts digits that int() does not.
_COUNT: Final = re.compile(r"[0-9]{1,18}")
#: Integers as in JSON: 007 and +5 are text.
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")


class Parsed(click.ParamType[T]):
    """A type with a parser whose ``ValueError`` is the usage error; ``name`` is shown in help."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Parse text; click also passes values that were parsed already."""
        if not isinstance(value, str):
            return cast("T", value)
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def is_count(text: str) -> bool:
    """Whether it is a whole number in ASCII digits."""
    return _COUNT.fullmatch(text) is not None


def to_duration_ms(text: str) -> int:
    """Milliseconds of ``250ms``, ``5s``, ``1h30m``; raises ``ValueError`` with the reason."""
    text = text.strip()
    if text == "0":
        return 0
    if is_count(text):
        raise ValueError(f"{text} has no unit; write {text}s or {text}ms.")
    if _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a duration such as 250ms, 5s, 10m, 1h30m or 7d.")
    return round(sum(float(value) * _UNITS_MS[unit] for value, unit in _PART.findall(text)))


def _to_duration_or_none(text: str) -> int | str:
    return NO_LIMIT if text.strip() == NO_LIMIT else to_duration_ms(text)


def _to_seconds(text: str) -> int:
    seconds, rest_ms = divmod(to_duration_ms(text), 1000)
    if rest_ms:
        raise ValueError(f"{text!r} is not a whole number of seconds.")
    return seconds


def _to_interval(text: str) -> float:
    """Like a duration, but a bare number is seconds, as of ``--interval``."""
    return float(text) if is_count(text.strip()) else to_duration_ms(text) / 1000


def _to_period(text: str) -> int | str:
    return ALL if text.strip() == ALL else max(1, _to_seconds(text))


def _to_count_or_none(text: str) -> int | str:
    text = text.strip()
    if text == NO_LIMIT:
        return NO_LIMIT
    if not is_count(text):
        raise ValueError(f"{text!r} is neither a whole number nor none.")
    return int(text)


def to_header(text: str) -> tuple[str, HeaderValue]:
    """Parse ``name=value``; a value that is valid JSON has its JSON type, others are text."""
    name, separator, raw = text.partition("=")
    if not separator or not name:
        raise ValueError(f"{text!r} is not name=value.")
    if _INTEGER.fullmatch(raw):
        return name, int(raw)
    try:
        value = msgspec.json.decode(raw.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return name, raw
    return name, value if isinstance(value, str | int | float | bool) else raw


def _to_label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"{text!r} is not name=value.")
    return name, value


def _to_label_or_none(text: str) -> tuple[str, str] | str:
    return NO_LIMIT if text == NO_LIMIT else _to_label(text)


def _to_start(text: str) -> Start:
    if text in (Start.LATEST, Start.EARLIEST):
        return Start(text)
    kind, _, rest = text.partition(":")
    if kind in (Start.OFFSET, Start.TIME) and is_count(rest):
        return Start(kind, int(rest))
    try:
        if kind == Start.TIME:
            return Start(kind, int(to_time(rest).timestamp() * 1000))
    except ValueError:
        pass
    raise ValueError(
        f"{text!r} is not latest, earliest, offset:17, time:1735689600000 or "
        "time:2025-01-01T00:00:00Z."
    )


def to_time(text: str) -> datetime:
    """An ISO date and time; UTC if it has no zone."""
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


DURATION: Final = Parsed("duration", to_duration_ms)
DURATION_OR_NONE: Final = Parsed("duration|none", _to_duration_or_none)
SECONDS: Final = Parsed("duration", _to_seconds)
INTERVAL: Final = Parsed("duration", _to_interval)
PERIOD: Final = Parsed("duration|all", _to_period)
TIME: Final = Parsed("time", lambda text: int(to_time(text).timestamp() * 1000))
COUNT_OR_NONE: Final = Parsed("count|none", _to_count_or_none)
HEADER: Final = Parsed("name=value", to_header)
LABEL: Final = Parsed("name=value", _to_label)
LABEL_OR_NONE: Final = Parsed("name=value|none", _to_label_or_none)
START: Final = Parsed("latest|earliest|offset:N|time:T", _to_start)
