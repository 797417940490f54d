"""The report as one self-contained page: figures, charts and tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, TypeAlias

from msgspec import Struct

from penstock.pipeline.report.charts import (
    MOST_LINES,
    Bar,
    bar_chart,
    line_chart,
    shown_ms,
    shown_number,
)
from penstock.pipeline.report.tables import Span

__all__ = ["Figures", "make_page"]

#: A row of a table, by column.
Row: TypeAlias = Mapping[str, Any]

_MOST_ROWS: Final = 20
_MOST_ERROR: Final = 2_000
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2530; --soft: #5d6b7a; --line: #dde3ea; --paper: #fff;
  --card: #f6f8fa; --alarm: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf1; --soft: #9aa7b5; --line: #323c48;
  --paper: #12171d; --card: #1a2129; --alarm: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1100px; padding: 24px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 8px; }
p.about { color: var(--soft); margin: 4px 0 20px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.figures div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; }
.figures b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.figures span { color: var(--soft); font-size: 13px; } .alarm { color: var(--alarm); }
section > svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--soft); } svg .label { fill: var(--ink); }
svg .value { fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); stroke-width: 1; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 4px 0 0;
  padding: 0; font-size: 13px; }
.legend span { display: inline-block; width: 11px; height: 11px; margin-right: 6px;
  border-radius: 2px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; padding: 6px 10px; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, pre { font: 12.5px/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0 0; max-height: 220px;
  overflow: auto; } details { margin: 0; } summary { cursor: pointer; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
"""


class Figures(Struct, frozen=True, kw_only=True):
    """The data of the page: small tables, as rows."""

    url: str
    made_at: int
    """Epoch milliseconds."""
    span: Span | None
    rows: Mapping[str, Sequence[Row]]
    """By the names of ``tables.Tables``."""
    depths: Mapping[str, int]
    """The current depth by queue, from the broker."""


def make_page(figures: Figures) -> str:
    """The page, as HTML."""
    rows = figures.rows
    made = datetime.fromtimestamp(figures.made_at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if figures.span is None:
        body = "<p>Nothing has been published yet.</p>"
    else:
        body = "".join(
            (
                _headline(rows, figures.depths),
                _throughput(rows, figures.span),
                _depth(rows, figures),
                _latency(rows["latency"]),
                _retries(rows["rates"]),
                _failures(rows["failures"]),
                _consumers(rows["consumers"]),
            )
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Penstock report, {made}</title><style>{_STYLE}</style></head><body>"
        f'<h1>Penstock report</h1><p class="about">{escape(figures.url)}, {_period(figures.span)}; '
        f"made {made}</p>{body}<footer>The tables behind this page are Parquet files in "
        "<code>tables/</code> next to it. Times are UTC.</footer></body></html>\n"
    )


def _period(span: Span | None) -> str:
    if span is None:
        return "no time"
    begin, end = (
        datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")
        for second in (span.start, span.end)
    )
    return f"{begin} to {end}"


def _headline(rows: Mapping[str, Sequence[Row]], depths: Mapping[str, int]) -> str:
    rates = rows["rates"]
    claims = sum(row["claims"] for row in rates)
    failures = sum(row["failures"] for row in rates)
    again = sum(row["nacks"] + row["lapses"] for row in rates)
    published = sum(row["messages"] for row in rows["published"])
    items = (
        (shown_number(published), "messages published", False),
        (_shown_bytes(sum(row["bytes"] for row in rows["published"])), "of payload", False),
        (shown_number(sum(row["acks"] for row in rates)), "deliveries acked", False),
        (shown_number(sum(depths.values())), "waiting now", False),
        (_percent(again, claims), "of claims came back", again * 20 > claims),
        (shown_number(failures), "deliveries failed", failures > 0),
    )
    drawn = "".join(
        f"<div><b{' class=alarm' if alarm else ''}>{escape(text)}</b><span>{what}</span></div>"
        for text, what, alarm in items
    )
    return f'<div class="figures">{drawn}</div>'


def _throughput(rows: Mapping[str, Sequence[Row]], span: Span) -> str:
    totals: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows["published"]:
        totals["published"][_second(row["time"])] += row["messages"] / span.width
    names = {"claim": "claimed", "ack": "acked", "nack": "nacked", "lapse": "lapsed"}
    for row in rows["events"]:
        if row["transition"] in names:
            totals[names[row["transition"]]][_second(row["time"])] += row["count"] / span.width
    times = list(span.buckets)
    lines = {
        name: [totals[name].get(time, 0.0) for time in times]
        for name in ("published", *names.values())
        if name in totals
    }
    return _section(
        "Throughput, messages per second",
        line_chart(times, lines, label="Messages per second over time, by what happened to them"),
    )


def _depth(rows: Mapping[str, Sequence[Row]], figures: Figures) -> str:
    assert figures.span is not None
    times = list(figures.span.buckets)
    changes: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows["depth"]:
        changes[row["queue"]][_second(row["time"])] = row["depth"]
    highest = sorted(changes, key=lambda queue: (-max(changes[queue].values()), queue))
    lines: dict[str, list[float]] = {}
    for queue in highest[:MOST_LINES]:
        depth = 0.0
        lines[queue] = [depth := changes[queue].get(time, depth) for time in times]
    forecast = [
        (
            row["queue"],
            shown_number(figures.depths.get(row["queue"], row["depth"])),
            f"{row['arrivals_a_second']:.3g}",
            f"{row['settled_a_second']:.3g}",
            "never, at this rate"
            if row["empty_in_s"] is None
            else shown_ms(row["empty_in_s"] * 1000),
        )
        for row in sorted(rows["forecast"], key=lambda row: (-row["depth"], row["queue"]))
    ]
    titles = ("queue", "waiting now", "arrivals per second", "settled per second", "empty in")
    chart = line_chart(times, lines, label="Unsettled deliveries over time, by queue")
    return _section("Depth", chart + _table(titles, forecast, right=(1, 2, 3, 4)))


def _latency(rows: Sequence[Row]) -> str:
    bars = [
        Bar(
            f"{row['queue']}: {row['kind']}",
            [row["p50"], row["p95"] - row["p50"], row["p99"] - row["p95"]],
            f"p50 {shown_ms(row['p50'])}, p95 {shown_ms(row['p95'])}, p99 {shown_ms(row['p99'])}",
        )
        for row in sorted(rows, key=lambda row: (-row["p95"], row["queue"], row["kind"]))
    ]
    about = (
        '<p class="about">Wait is the time from publish to the first claim, work from a claim to '
        "its end.</p>"
    )
    chart = bar_chart(
        bars[:_MOST_ROWS],
        ("up to p50", "p50 to p95", "p95 to p99"),
        label="Latency percentiles by queue",
        shown=shown_ms,
    )
    cells = [
        (
            row["queue"],
            row["kind"],
            shown_number(row["count"]),
            *(shown_ms(row[name]) for name in ("p50", "p90", "p95", "p99", "max")),
        )
        for row in sorted(rows, key=lambda row: (row["queue"], row["kind"]))
    ]
    titles = ("queue", "kind", "count", "p50", "p90", "p95", "p99", "max")
    return _section("Latency", about + chart + _table(titles, cells, right=range(2, 8)))


def _retries(rows: Sequence[Row]) -> str:
    cells = [
        (
            row["queue"],
            shown_number(row["messages"]),
            shown_number(row["claims"]),
            shown_number(row["acks"]),
            _percent(row["nacks"] + row["lapses"], row["claims"]),
            shown_number(row["lapses"]),
            shown_number(row["failures"]),
            _percent(row["failures"], row["messages"]),
        )
        for row in sorted(rows, key=lambda row: (-row["failures"], row["queue"]))
    ]
    titles = (
        "queue",
        "messages",
        "claims",
        "acks",
        "retried",
        "leases lapsed",
        "failed",
        "of messages",
    )
    bars = [
        Bar(
            row["queue"],
            [row["acks"], row["nacks"], row["lapses"], row["failures"]],
            f"{_percent(row['nacks'] + row['lapses'], row['claims'])} retried, "
            f"{_percent(row['failures'], row['messages'])} failed",
        )
        for row in sorted(rows, key=lambda row: (-row["claims"], row["queue"]))[:_MOST_ROWS]
    ]
    chart = bar_chart(
        bars, ("acked", "nacked", "lapsed", "failed"), label="How claims ended, by queue"
    )
    return _section("Retries and failures", chart + _table(titles, cells, right=range(1, 8)))


def _failures(rows: Sequence[Row]) -> str:
    if not rows:
        return _section("Errors", "<p>None were reported.</p>")
    drawn: list[str] = []
    for row in rows[:_MOST_ROWS]:
        example = escape((row["example"] or "(no error was given)")[:_MOST_ERROR])
        messages = ", ".join(str(number) for number in row["messages"])
        drawn.append(
            f"<tr><td><code>{escape(row['fingerprint'])}</code></td>"
            f'<td class="n">{shown_number(row["count"])}</td>'
            f'<td class="n">{shown_number(row["failed"])}</td>'
            f"<td>{escape(', '.join(row['queues']))}</td>"
            f"<td><details><summary>{escape(row['pattern'])}</summary><pre>{example}</pre>"
            f"messages {escape(messages)}</details></td>"
            f'<td class="n">{_clock(row["last"])}</td></tr>'
        )
    head = (
        '<tr><th>fingerprint</th><th class="n">times</th><th class="n">failed</th><th>queues</th>'
        '<th>error, with an example</th><th class="n">last</th></tr>'
    )
    about = (
        '<p class="about">Errors that differ only in names and numbers count as one. '
        "<code>penstock pipeline replay QUEUE --fingerprint NAME</code> redelivers the messages "
        "that failed with it.</p>"
    )
    table = f'<div class="scroll"><table>{head}{"".join(drawn)}</table></div>'
    return _section("Errors", about + table)


def _consumers(rows: Sequence[Row]) -> str:
    cells = [
        (
            row["consumer"] or "(unknown)",
            row["queue"],
            shown_number(row["count"]),
            _percent(row["not_acked"], row["count"]),
            shown_ms(row["p50"]),
            shown_ms(row["p95"]),
            shown_ms(row["max"]),
        )
        for row in sorted(rows, key=lambda row: (-row["p95"], row["queue"], str(row["consumer"])))
    ]
    titles = ("consumer", "queue", "claims that ended", "not acked", "p50", "p95", "max")
    return _section("Slowest consumers", _table(titles, cells, right=range(2, 7)))


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] | range
) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        drawn = "".join(
            f"<{tag}{' class=n' if place in right else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{drawn}</tr>"

    more = len(rows) - _MOST_ROWS
    note = f'<p class="about">{more} more are in the tables.</p>' if more > 0 else ""
    body = "".join(line(row, "td") for row in rows[:_MOST_ROWS])
    return f'<div class="scroll"><table>{line(titles, "th")}{body}</table></div>{note}'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _second(time: datetime) -> int:
    return int(time.timestamp())


def _clock(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "0 %"


def _shown_bytes(size: float) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while size >= 1024 and power < len(units) - 1:
        size /= 1024
        power += 1
    return f"{size:.3g} {units[power]}"
