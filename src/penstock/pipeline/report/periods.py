"""The time that a report is about, in buckets, and the same time before."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["DAY_S", "Period", "period_of"]

DAY_S: Final = 86_400
#: Bucket widths in seconds; the first that gives at most ``_BUCKETS`` buckets is used.
_WIDTHS: Final = (1, 5, 10, 30, 60, 300, 900, 1800, 3600, 6 * 3600, DAY_S, 7 * DAY_S)
_BUCKETS: Final = 100


class Period(Struct, frozen=True):
    """From ``start`` up to ``end``, in epoch seconds, divided into buckets of ``width``."""

    start: int
    end: int
    width: int
    is_all: bool = False
    """Whether it is everything there is, so that there is nothing before it."""

    @property
    def length(self) -> int:
        """In seconds."""
        return self.end - self.start

    @property
    def before(self) -> int:
        """Where the previous period starts; the start, if this one is everything."""
        return self.start if self.is_all else self.start - self.length

    @property
    def buckets(self) -> range:
        """The start of each bucket; multiples of the width."""
        return range(self.start - self.start % self.width, self.end, self.width)


def period_of(start: int, end: int, *, is_all: bool = False) -> Period:
    """A period with suitable buckets."""
    length = end - start
    width = next((width for width in _WIDTHS if length <= width * _BUCKETS), _WIDTHS[-1])
    return Period(start, end, width, is_all)
