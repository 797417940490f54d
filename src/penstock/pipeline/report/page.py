"""The report as one self-contained page: style, script and data are inside, nothing is loaded."""

from __future__ import annotations

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

__all__ = ["make_page"]

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
                _charts("Over time", [one for one in charts if one.group == "period"]),
                failures_section(figures),
                tables_section(figures),
                _charts("Since the beginning", [one for one in charts if one.group == "trend"]),
            )
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Penstock report, {escape(_title(figures))}</title>"
        f"<style>{_text('uplot.css', vendor=True)}{_text('report.css')}</style></head><body>"
        f"<header><div><h1>Penstock report</h1><p>{escape(_about(figures))}</p></div>"
        '<button type="button" id="theme" hidden>Theme</button></header>'
        f"<main>{body}</main><footer><p>{escape(figures.url)}, made {made} UTC. All times are UTC. "
        "The tables behind this page are Parquet files in <code>tables/</code> next to it.</p>"
        f"</footer>{_scripts(charts)}</body></html>\n"
    )


def _title(figures: Figures) -> str:
    return shown_time(figures.period.end)


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


def _charts(title: str, charts: list[Chart]) -> str:
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


def _scripts(charts: list[Chart]) -> str:
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
