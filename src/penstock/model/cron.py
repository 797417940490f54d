"""Cron expressions: five fields, in a time zone.

``minute hour day-of-month month day-of-week``, each ``*``, a number, a range ``a-b``, a list
``a,b`` or a step ``*/n`` or ``a-b/n``. Months and weekdays may be their English names of three
letters; Sunday is 0 and 7. As in every cron, if both days are restricted, either one suffices.

Where the clock changes, an expression with ``*`` as its hour fires at every matching minute of
real time. Any other fires once per matching wall-clock time: one that is skipped fires as much
later as the clock was moved, one that occurs twice fires at the first.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from msgspec import Struct

from penstock.errors import BadInput
from penstock.model.limits import shown

__all__ = ["Cron", "parse_cron"]

_MONTHS: Final = {name.lower(): n for n, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS: Final = {name: n for n, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri"))}
_WEEKDAYS["sat"] = 6
#: Name, least, greatest, words.
_FIELDS: Final[tuple[tuple[str, int, int, dict[str, int]], ...]] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _WEEKDAYS),
)
#: 29 February on one weekday comes back after at most 40 years (28, or 40 across 2100).
_MAX_DAYS: Final = 41 * 366
_MAX_TEXT: Final = 200


class Cron(Struct, frozen=True, kw_only=True):
    """A parsed expression."""

    text: str
    zone: ZoneInfo
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Whether a matching day of the month or of the week suffices."""
    real_time: bool
    """Whether the hour is ``*``."""

    def after(self, at_ms: int) -> int:
        """The first slot after a moment, in epoch milliseconds."""
        local = datetime.fromtimestamp(at_ms / 1000, self.zone)
        # A skipped time may have been moved here from the day before.
        day = local.date() - timedelta(days=1)
        for _ in range(_MAX_DAYS):
            if self._matches(day):
                later = [slot for slot in self._slots(day) if slot > at_ms]
                if later:
                    return min(later)
            day += timedelta(days=1)
        raise BadInput(f"The cron expression {self.text!r} never fires.", field="cron")

    def latest(self, since_ms: int, now_ms: int) -> int | None:
        """The last slot after one moment and not after another; None if there is none."""
        day = datetime.fromtimestamp(now_ms / 1000, self.zone).date()
        first = datetime.fromtimestamp(since_ms / 1000, self.zone).date() - timedelta(days=1)
        while day >= first:
            # A skipped time may have been moved here from the day before.
            days = (day, day - timedelta(days=1))
            slots = [slot for item in days if self._matches(item) for slot in self._slots(item)]
            found = max((slot for slot in slots if since_ms < slot <= now_ms), default=None)
            if found is not None:
                return found
            day -= timedelta(days=1)
        return None

    def _matches(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day or by_weekday if self.either_day else by_day and by_weekday

    def _slots(self, day: date) -> Iterator[int]:
        for hour in self.hours:
            for minute in self.minutes:
                wall = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001
                first = wall.replace(tzinfo=self.zone)
                if not self.real_time:
                    yield _epoch_ms(first)
                    continue
                for moment in (first, first.replace(fold=1)):
                    instant = moment.astimezone(UTC)
                    # A skipped time does not survive the round trip.
                    if instant.astimezone(self.zone).replace(tzinfo=None) == wall:
                        yield _epoch_ms(instant)


def parse_cron(text: object, zone: ZoneInfo) -> Cron:
    """Parse an expression; ``BadInput`` names the field that is wrong."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT or len(text.split()) != len(_FIELDS):
        raise BadInput(
            f"The cron expression is {shown(text)}; it must have five fields: minute, hour, day of "
            "the month, month and day of the week.",
            field="cron",
            limit=len(_FIELDS),
        )
    parts = text.split()
    minutes, hours, days, months, weekdays = (
        _parse_field(part, *field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    parsed = Cron(
        text=text,
        zone=zone,
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(number % 7 for number in weekdays),
        either_day=not parts[2].startswith("*") and not parts[4].startswith("*"),
        real_time=parts[1] == "*",
    )
    parsed.after(0)
    return parsed


def _parse_field(text: str, name: str, least: int, most: int, words: dict[str, int]) -> set[int]:
    found: set[int] = set()
    for item in text.lower().split(","):
        span, slash, step = item.partition("/")
        if span == "*":
            first, last = least, most
        else:
            low, dash, high = span.partition("-")
            first = _number(low, text, name, least, most, words)
            last = _number(high, text, name, least, most, words) if dash else first
            if slash and not dash:
                raise _bad(text, name, "a step needs a range or *")
        if first > last:
            raise _bad(text, name, f"{span} is an empty range")
        every = _number(step, text, name, 1, most, {}) if slash else 1
        found |= set(range(first, last + 1, every))
    return found


def _number(text: str, field: str, name: str, least: int, most: int, words: dict[str, int]) -> int:
    number = words.get(text)
    if number is None:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 3 else -1
    if not least <= number <= most:
        raise _bad(field, name, f"{text!r} is not from {least} to {most}")
    return number


def _bad(text: str, name: str, why: str) -> BadInput:
    return BadInput(f"The {name} of the cron expression is {text!r}: {why}.", field="cron")


def _epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
