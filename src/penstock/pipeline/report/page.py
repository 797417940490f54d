"""The report as one self-contained page: style, script and data are inside, nothing is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

import msgspec

from penstock.pipeline.report.charts import Chart, charts_of
from penstock.pipeline.report.figures import Figures
from penstock.pipeline.report.formatting import shown_period, shown_time
from penstock.pipeline.report.sections import (
    attention_section,
    failures_section,
    story_section,
    tables_section,
    tiles,
)

__all__ = ["charts_section", "make_page", "whole_page"]

_VENDOR: Final = files("penstock.server") / "console" / "static" / "vendor"
_STATIC: Final = files("penstock.pipeline.report") / "static"


def make_page(figures: Figures) -> str:
    """The page, as HTML."""
    made = datetime.fromtimestamp(figures.made_at / 1000, UTC).strftime("%d %b %Y, %H:%M")
    if figures.is_empty:
        body, charts = '<p class="fine">Nothing has been published yet.</p>', []
    else:
        charts = charts_of(figures)
        body = "".join(
            (
                story_section(figures),
                tiles(figures),
                attention_section(figures),
                charts_section("Over time", _of(charts, "period")),
                failures_section(figures),
                tables_section(figures),
                charts_section(
                    "Since the beginning", [one for one in charts if one.group == "trend"]
                ),
            )
        )
    return whole_page(
        f"Penstock report, {shown_time(figures.period.end)}",
        "Penstock report",
        _about(figures),
        body,
        f"{figures.url}, made {made} UTC. All times are UTC.",
        charts,
    )


def _of(charts: Sequence[Chart], group: str) -> list[Chart]:
    return [one for one in charts if one.group == group]


def whole_page(
    title: str, heading: str, about: str, body: str, made: str, charts: Sequence[Chart]
) -> str:
    """A page around its content; everything but ``body`` is escaped here."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>"
        f"<style>{_text('uplot.css', vendor=True)}{_text('report.css')}</style></head><body>"
        f"<header><div><h1>{escape(heading)}</h1><p>{escape(about)}</p></div>"
        '<button type="button" id="theme" hidden>Theme</button></header>'
        f"<main>{body}</main><footer><p>{escape(made)} "
        "The tables behind this page are Parquet files in <code>tables/</code> next to it.</p>"
        f"</footer>{_scripts(charts)}</body></html>\n"
    )


def _about(figures: Figures) -> str:
    period = figures.period
    text = f"{shown_time(period.start)} to {shown_time(period.end)}"
    if period.is_all:
        return f"Everything, {text}"
    length = f"The last {shown_period(period.length)}" if _is_now(figures) else ""
    compared = f", compared with the {shown_period(period.length)} before"
    return f"{length}{', ' if length else ''}{text}{compared if figures.has_previous else ''}"


def _is_now(figures: Figures) -> bool:
    return abs(figures.period.end - figures.made_at / 1000) < 2 * figures.period.width


def charts_section(title: str, charts: Sequence[Chart]) -> str:
    """The charts of a group; empty if there are none."""
    if not charts:
        return ""
    drawn = "".join(
        f'<figure class="chart" data-chart="{chart.id}"><figcaption><b>{escape(chart.title)}</b> '
        f"<span>{escape(chart.about)}</span></figcaption><div class=plot></div></figure>"
        for chart in charts
    )
    group = charts[0].group
    about = (
        '<p class="about">Drag to zoom all charts, double-click to zoom out, click a name to hide '
        "it.</p><noscript><p>The charts need JavaScript; everything else does not.</p></noscript>"
    )
    return (
        f"<section><h2>{escape(title)}</h2>{about if group == 'period' else ''}"
        f'<div class="charts">{drawn}</div></section>'
    )


def _scripts(charts: Sequence[Chart]) -> str:
    if not charts:
        return f"<script>{_text('report.js')}</script>"
    # Inside a script element only "</" and "<!--" could end or change it.
    data = msgspec.json.encode(charts).decode().replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="charts">{data}</script>'
        f"<script>{_text('uplot.js', vendor=True)}</script><script>{_text('report.js')}</script>"
    )


@cache
def _text(name: str, *, vendor: bool = False) -> str:
    return ((_VENDOR if vendor else _STATIC) / name).read_text(encoding="utf-8")
