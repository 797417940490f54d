"""Charts as inline SVG: a page with them needs no script, no font and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from msgspec import Struct

__all__ = ["COLOURS", "Bar", "bar_chart", "line_chart", "shown_ms", "shown_number"]

#: Distinguishable with colour blindness (Okabe and Ito), on light and dark backgrounds.
COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c7a1a")
#: Lines per chart; the tables have the rest.
MOST_LINES: Final = len(COLOURS)

_WIDTH: Final = 760
_HEIGHT: Final = 240
_LEFT: Final = 62
_RIGHT: Final = 12
_TOP: Final = 12
_BOTTOM: Final = 26
_TICKS: Final = 4
_BAR: Final = 22
_LABELS: Final = 190
#: Approximate width of a letter.
_LETTER: Final = 6.4
_DAY_S: Final = 86_400


class Bar(Struct, frozen=True):
    """One bar: its label, the lengths of its parts, and its text."""

    label: str
    parts: Sequence[float]
    text: str = ""


def line_chart(
    times: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    *,
    label: str,
    shown: Callable[[float], str] | None = None,
) -> str:
    """Values over time: ``times`` in epoch seconds, and one value per line and time."""
    shown = shown or shown_number
    top = _nice_top(max((value for line in lines.values() for value in line), default=0))
    parts = [_open(_HEIGHT, label), _grid(top, shown), _time_axis(times)]
    for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
        points = [_point(i, len(times), value, top) for i, value in enumerate(values)]
        text = escape(f"{name}: at most {shown(max(values, default=0))}")
        if len(points) == 1:
            x, y = points[0]
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"><title>{text}</title></circle>'
            )
        else:
            path = " ".join(f"{x},{y}" for x, y in points)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" '
                f'stroke-linejoin="round"><title>{text}</title></polyline>'
            )
    parts.append("</svg>")
    return "".join(parts) + _legend(list(lines))


def bar_chart(
    bars: Sequence[Bar],
    names: Sequence[str],
    *,
    label: str,
    shown: Callable[[float], str] | None = None,
) -> str:
    """Horizontal bars next to their labels; several parts of a bar are stacked."""
    shown = shown or shown_number
    height = len(bars) * (_BAR + 8) + 8
    longest = max((sum(bar.parts) for bar in bars), default=0) or 1
    texts = [bar.text or shown(sum(bar.parts)) for bar in bars]
    remaining = _WIDTH - _LABELS - max((len(text) for text in texts), default=0) * _LETTER - 12
    drawn = [_open(height, label)]
    for row, bar in enumerate(bars):
        y = 8 + row * (_BAR + 8)
        drawn.append(
            f'<text x="{_LABELS - 8}" y="{y + 15}" text-anchor="end" class="label">'
            f"{escape(_cut(bar.label))}<title>{escape(bar.label)}</title></text>"
        )
        x = float(_LABELS)
        for part, colour, name in zip(bar.parts, COLOURS, names, strict=False):
            width = part / longest * remaining
            if width > 0:
                drawn.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{max(width, 1):.1f}" height="{_BAR}" rx="2" '
                    f'fill="{colour}"><title>{escape(f"{name}: {shown(part)}")}</title></rect>'
                )
            x += width
        drawn.append(
            f'<text x="{x + 6:.1f}" y="{y + 15}" class="value">{escape(texts[row])}</text>'
        )
    drawn.append("</svg>")
    return "".join(drawn) + (_legend(names) if len(names) > 1 else "")


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
    return f"{value / 60_000:.3g} min" if value < 7_200_000 else f"{value / 3_600_000:.3g} h"


def _open(height: int, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">'
    )


def _nice_top(highest: float) -> float:
    """The end of an axis: 1, 2, 2.5 or 5 times a power of ten, above all values."""
    if highest <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= highest:
        power *= 10
    while power > highest:
        power /= 10
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= highest)


def _grid(top: float, shown: Callable[[float], str]) -> str:
    drawn: list[str] = []
    for tick in range(_TICKS + 1):
        y = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * tick / _TICKS
        drawn.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="tick">'
            f"{escape(shown(top * tick / _TICKS))}</text>"
        )
    return "".join(drawn)


def _time_axis(times: Sequence[int]) -> str:
    if not times:
        return ""
    several_days = times[-1] - times[0] > _DAY_S
    form = "%d %b %H:%M" if several_days else "%H:%M:%S"
    chosen = sorted({0, len(times) // 3, 2 * len(times) // 3, len(times) - 1})
    drawn: list[str] = []
    for index in chosen:
        x, _ = _point(index, len(times), 0, 1)
        anchor = "start" if index == 0 else "end" if index == len(times) - 1 else "middle"
        text = datetime.fromtimestamp(times[index], UTC).strftime(form)
        drawn.append(
            f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="{anchor}" class="tick">{text}</text>'
        )
    return "".join(drawn)


def _point(index: int, count: int, value: float, top: float) -> tuple[float, float]:
    across = _WIDTH - _LEFT - _RIGHT
    x = _LEFT + (across * index / (count - 1) if count > 1 else across / 2)
    y = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top
    return round(x, 1), round(y, 1)


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><span style="background:{colour}"></span>{escape(name)}</li>'
        for name, colour in zip(names, COLOURS, strict=False)
    )
    return f'<ul class="legend">{items}</ul>'


def _cut(text: str, most: int = 28) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
