"""Numbers, durations and times as short text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = [
    "shown_bytes",
    "shown_change",
    "shown_ms",
    "shown_number",
    "shown_percent",
    "shown_period",
    "shown_rate",
    "shown_time",
]

_DAY_S: Final = 86_400
_HOUR_S: Final = 3_600


def shown_number(value: float) -> str:
    """A short form of a count: 1,234 or 1.2 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


def shown_ms(value: float) -> str:
    """A short form of a duration."""
    if value < 1000:
        return f"{value:.0f} ms"
    if value < 120_000:
        return f"{value / 1000:.3g} s"
    if value < 7_200_000:
        return f"{value / 60_000:.3g} min"
    return f"{value / 3_600_000:.3g} h" if value < 48 * 3_600_000 else f"{value / 86_400_000:.3g} d"


def shown_bytes(size: float) -> str:
    """A size in binary units."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while size >= 1024 and power < len(units) - 1:
        size /= 1024
        power += 1
    return f"{size:.3g} {units[power]}"


def shown_rate(per_second: float) -> str:
    """A rate, per the unit in which it is at least one."""
    for unit, seconds in (("s", 1), ("min", 60), ("h", _HOUR_S)):
        if per_second * seconds >= 1 or unit == "h":
            return f"{shown_number(round(per_second * seconds, 1))}/{unit}"
    raise AssertionError


def shown_percent(part: float, whole: float) -> str:
    """A share in percent; of nothing, 0 %."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.2g} %"


def shown_change(now: float, before: float) -> str:
    """A change as people say it: +12 %, 3.1 times, or the same."""
    if now == before or abs(now - before) < before / 100:
        return "same"
    if before == 0:
        return "new"
    if now >= 2 * before:
        return f"{now / before:.3g} times"
    return f"{100 * (now - before) / before:+.0f} %"


def shown_time(second: float) -> str:
    """A moment in UTC."""
    return datetime.fromtimestamp(second, UTC).strftime("%d %b %Y, %H:%M")


def shown_period(seconds: int) -> str:
    """A length of time: day, 7 days, 6 hours."""
    for unit, size in (("day", _DAY_S), ("hour", _HOUR_S), ("minute", 60), ("second", 1)):
        if seconds >= size and seconds % size == 0:
            count = seconds // size
            return unit if count == 1 else f"{count} {unit}s"
    return f"{seconds} seconds"
