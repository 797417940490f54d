"""Arguments with a format of their own: durations, headers, positions in the log.

Anything that does not parse is a usage error (exit 2) that shows valid forms. A bare number is
refused if a unit is missing: ``--lease 30`` could be off by a factor of a thousand.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from penstock.model.message import HeaderValue
from penstock.model.queue import Start

__all__ = [
    "COUNT_OR_NONE",
    "DURATION",
    "HEADER",
    "SECONDS",
    "START",
    "CountOrNone",
    "Duration",
    "Header",
    "Seconds",
    "StartPoint",
    "is_count",
    "to_duration_ms",
    "to_header",
]

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")
#: Fits into 63 bits. ASCII only: str.isdigit() accepts digits that int() does not.
_COUNT: Final = re.compile(r"[0-9]{1,18}")
#: Integers as in JSON: 007 and +5 are text.
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")


def is_count(text: str) -> bool:
    """Whether it is a whole number in ASCII digits."""
    return _COUNT.fullmatch(text) is not None


def to_duration_ms(text: str) -> int:
    """Milliseconds of ``250ms``, ``5s``, ``1h30m``; raises ``ValueError`` with the reason."""
    if text == "0":
        return 0
    if is_count(text):
        raise ValueError(f"{text} has no unit; write {text}s or {text}ms.")
    if _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a duration such as 250ms, 5s, 10m, 1h30m or 7d.")
    return round(sum(float(value) * _UNITS_MS[unit] for value, unit in _PART.findall(text)))


class Duration(click.ParamType[int]):
    """A duration with its unit, in milliseconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Milliseconds."""
        if isinstance(value, int):
            return value
        try:
            return to_duration_ms(str(value).strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Seconds(Duration):
    """A duration in whole seconds."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Seconds."""
        if isinstance(value, int):
            return value
        whole_ms = super().convert(value, param, ctx)
        if whole_ms % 1000:
            self.fail(f"{value!r} is not a whole number of seconds.", param, ctx)
        return whole_ms // 1000


class CountOrNone(click.ParamType[object]):
    """A whole number, or ``none`` to remove a limit. ``none`` is converted to ``NONE``."""

    name = "count|none"
    #: Distinct from None, which means that the option was not given.
    NONE: Final = "none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """The number, or ``NONE``."""
        text = str(value).strip()
        if text == self.NONE:
            return text
        if not is_count(text):
            self.fail(f"{text!r} is neither a whole number nor none.", param, ctx)
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


class Header(click.ParamType[tuple[str, HeaderValue]]):
    """A header, ``name=value``."""

    name = "name=value"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, HeaderValue]:
        """The name and its typed value."""
        if isinstance(value, tuple):
            return value
        try:
            return to_header(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class StartPoint(click.ParamType[Start]):
    """The position in the log at which a queue starts."""

    name = "latest|earliest|offset:N|time:T"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Start:
        """The start."""
        if isinstance(value, Start):
            return value
        text = str(value)
        kind, _, rest = text.partition(":")
        if text in (Start.LATEST, Start.EARLIEST):
            return Start(text)
        if kind in (Start.OFFSET, Start.TIME) and is_count(rest):
            return Start(kind, int(rest))
        moment = _to_time_ms(rest) if kind == Start.TIME else None
        if moment is None:
            self.fail(
                f"{text!r} is not latest, earliest, offset:17, time:1735689600000 or "
                "time:2025-01-01T00:00:00Z.",
                param,
                ctx,
            )
        return Start(kind, moment)


def _to_time_ms(text: str) -> int | None:
    """Epoch milliseconds of an ISO date and time; UTC if it has no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


DURATION: Final = Duration()
SECONDS: Final = Seconds()
COUNT_OR_NONE: Final = CountOrNone()
HEADER: Final = Header()
START: Final = StartPoint()
