"""The page about several tenants: which publishes how much, and which needs attention.

Every tenant has a report of its own; this page compares them and links to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock.pipeline.report.charts import Chart, Series, sparkline
from penstock.pipeline.report.figures import Figures
from penstock.pipeline.report.formatting import (
    shown_bytes,
    shown_change,
    shown_number,
    shown_percent,
    shown_time,
)
from penstock.pipeline.report.html_tables import Cell, section, table
from penstock.pipeline.report.page import charts_section, whole_page
from penstock.pipeline.report.story import FAILING, attention

__all__ = ["TenantReport", "make_tenants_page", "tenants_table"]

#: Lines of the chart; the table has the other tenants.
_MOST_LINES: Final = 6
#: Reasons for attention per tenant; its own page has all.
_MOST_REASONS: Final = 3


class TenantReport(Struct, frozen=True):
    """One tenant, and where its own page is."""

    tenant: str
    figures: Figures
    link: str
    """Relative to the page about all."""

    @property
    def messages(self) -> int:
        """Published in the period."""
        return sum(topic.messages for topic in self.figures.topics)

    @property
    def messages_before(self) -> int:
        """In the period before."""
        return sum(topic.messages_before for topic in self.figures.topics)

    @property
    def bytes(self) -> int:
        """Their payload."""
        return sum(topic.bytes for topic in self.figures.topics)

    @property
    def waiting(self) -> int:
        """Deliveries that are unsettled now."""
        return sum(queue.now.depth for queue in self.figures.queues)

    @property
    def published(self) -> list[float]:
        """Messages per bucket."""
        columns = [topic.series for topic in self.figures.topics]
        return [sum(value or 0 for value in values) for values in zip(*columns, strict=True)]


def make_tenants_page(reports: Sequence[TenantReport]) -> str:
    """The page, as HTML; the reports have the same period."""
    ordered = sorted(reports, key=lambda one: (-one.messages, one.tenant))
    first = ordered[0].figures
    made = datetime.fromtimestamp(first.made_at / 1000, UTC).strftime("%d %b %Y, %H:%M")
    charts = _charts(ordered)
    body = (
        f'<section class="story" aria-label="Summary"><p>{escape(_story(ordered))}</p></section>'
        f"{charts_section('Over time', charts)}{_table(ordered)}{_attention(ordered)}"
    )
    period = first.period
    return whole_page(
        f"Penstock tenants, {shown_time(period.end)}",
        "Penstock tenants",
        f"{shown_time(period.start)} to {shown_time(period.end)}",
        body,
        f"{first.url}, made {made} UTC. All times are UTC.",
        charts,
    )


def tenants_table(reports: Sequence[TenantReport]) -> pa.Table:
    """A row per tenant, for a Parquet file."""
    return pa.Table.from_pylist(
        [
            {
                "tenant": one.tenant,
                "messages": one.messages,
                "messages_before": one.messages_before,
                "bytes": one.bytes,
                "arrivals": one.figures.current.arrivals,
                "acks": one.figures.current.acks,
                "failures": one.figures.current.failures,
                "waiting": one.waiting,
                "attention": len(attention(one.figures)),
            }
            for one in reports
        ],
        schema=pa.schema(
            [("tenant", pa.string())]
            + [
                (name, pa.int64())
                for name in (
                    "messages", "messages_before", "bytes", "arrivals", "acks", "failures",
                    "waiting", "attention",
                )
            ]
        ),
    )  # fmt: skip


def _story(reports: Sequence[TenantReport]) -> str:
    total = sum(one.messages for one in reports)
    many = "1 tenant" if len(reports) == 1 else f"{len(reports)} tenants"
    sentence = f"{many} published {shown_number(total)} messages"
    if total and len(reports) > 1:
        most = reports[0]
        sentence += f", {most.tenant} {shown_percent(most.messages, total)} of them"
    troubled = [one.tenant for one in reports if attention(one.figures)]
    if not troubled:
        return f"{sentence}. No queue needs attention."
    verb = "needs" if len(troubled) == 1 else "need"
    return f"{sentence}. {', '.join(troubled)} {verb} attention."


def _charts(reports: Sequence[TenantReport]) -> list[Chart]:
    period = reports[0].figures.period
    if period.is_all:
        # Each tenant begins at its own time.
        return []
    series = [
        Series(one.tenant, [value / period.width for value in one.published])
        for one in reports[:_MOST_LINES]
        if one.messages
    ]
    times = list(period.buckets)
    chart = Chart("tenants", "Published", "per second, the largest tenants", "rate", times, series)
    return [chart] if series else []


def _table(reports: Sequence[TenantReport]) -> str:
    total = sum(one.messages for one in reports)
    titles = (
        "tenant", "activity", "messages", "share", "change", "payload", "acked", "failed",
        "waiting now", "need attention",
    )  # fmt: skip
    rows = [_row(one, total) for one in reports]
    return section("Tenants", table("tenants", titles, rows, searchable=True))


def _row(one: TenantReport, total: int) -> list[Cell]:
    now = one.figures.current
    failed = now.failures / now.settled if now.settled else 0.0
    share = shown_percent(now.failures, now.settled) if now.failures else "\u2013"
    change = (
        shown_change(one.messages, one.messages_before) if one.figures.has_previous else "\u2013"
    )
    return [
        Cell(
            f'<a href="{escape(one.link, quote=True)}">{escape(one.tenant)}</a>',
            one.tenant,
        ),
        Cell(sparkline(one.published)),
        _number(one.messages),
        Cell(
            shown_percent(one.messages, total) if total else "\u2013",
            one.messages,
            right=True,
        ),
        Cell(escape(change), right=True),
        Cell(shown_bytes(one.bytes), one.bytes, right=True),
        _number(now.acks),
        Cell(
            f'<b class="bad">{share}</b>' if failed >= FAILING else share,
            failed,
            right=True,
        ),
        _number(one.waiting),
        _number(len(attention(one.figures))),
    ]


def _number(value: int) -> Cell:
    return Cell(shown_number(value), value, right=True)


def _attention(reports: Sequence[TenantReport]) -> str:
    cards = "".join(map(_card, reports))
    return section("Queues that need attention", f'<div class="cards">{cards}</div>') * bool(cards)


def _card(one: TenantReport) -> str:
    """The most urgent queues of a tenant."""
    found = attention(one.figures)
    if not found:
        return ""
    reasons = "".join(
        f"<li>{escape(queue.queue)}: {escape(queue.reasons[0])}.</li>"
        for queue in found[:_MOST_REASONS]
    )
    more = len(found) - _MOST_REASONS
    note = f'<p class="about">{more} more are on its page.</p>' if more > 0 else ""
    return f'<article class="card"><h3>{escape(one.tenant)}</h3><ul>{reasons}</ul>{note}</article>'
