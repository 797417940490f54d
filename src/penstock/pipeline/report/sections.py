"""The sections of the page as HTML: words, figures, failures and tables.

Every text that users wrote is escaped. The page can be read without its script; only the charts,
sorting and copying need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from penstock.pipeline.report.charts import sparkline
from penstock.pipeline.report.figures import Failure, Figures, QueueFigures
from penstock.pipeline.report.formatting import (
    shown_bytes,
    shown_change,
    shown_ms,
    shown_number,
    shown_percent,
    shown_time,
)
from penstock.pipeline.report.html_tables import Cell, section, table
from penstock.pipeline.report.story import FAILING, attention, replay_command, story

__all__ = ["attention_section", "failures_section", "story_section", "tables_section", "tiles"]

#: An empty cell: an en dash.
_NOTHING: Final = "\u2013"
_MOST_FAILURES: Final = 12
_MOST_ATTENTION: Final = 8
_MOST_ERROR: Final = 2_000
_MOST_CONSUMERS: Final = 30
#: Queues named per failure.
_MOST_NAMES: Final = 5


# -- the top of the page ---------------------------------------------------------------


def story_section(figures: Figures) -> str:
    """What happened, in sentences."""
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in story(figures))
    return f'<section class="story" aria-label="Summary">{sentences}</section>'


def tiles(figures: Figures) -> str:
    """The most important numbers, with their change."""
    now, before = figures.current, figures.previous
    topics = figures.topics
    messages = sum(topic.messages for topic in topics)
    messages_before = sum(topic.messages_before for topic in topics)
    returned, returned_before = (
        _share(counts.nacks + counts.lapses, counts.claims) for counts in (now, before)
    )
    waiting = sum(queue.now.depth for queue in figures.queues)
    items = (
        _tile(
            "published",
            shown_number(messages),
            _delta(messages, messages_before, figures),
            _added([topic.series for topic in topics]),
        ),
        _tile(
            "acked",
            shown_number(now.acks),
            _delta(now.acks, before.acks, figures),
            _total(figures, "acks"),
        ),
        _tile(
            "failed",
            shown_number(now.failures),
            _delta(now.failures, before.failures, figures, bad=True),
            _total(figures, "failures"),
            alarm=now.failures > 0,
        ),
        _tile(
            "retried",
            shown_percent(now.nacks + now.lapses, now.claims),
            _delta(returned, returned_before, figures, bad=True),
            _total(figures, "nacks"),
        ),
        _tile(
            "waiting now",
            shown_number(waiting),
            "",
            _added([queue.depth for queue in figures.queues if queue.depth]),
        ),
        _tile("payload", shown_bytes(sum(topic.bytes for topic in topics)), "", []),
    )
    return f'<div class="tiles">{"".join(items)}</div>'


def _tile(
    label: str, text: str, delta: str, line: Sequence[float | None], *, alarm: bool = False
) -> str:
    return (
        f'<div class="tile{" alarm" * alarm}"><b>{escape(text)}</b><span>{label}</span>'
        f"{delta}{sparkline(line)}</div>"
    )


def _delta(now: float, before: float, figures: Figures, *, bad: bool = False) -> str:
    if not figures.has_previous:
        return ""
    text = shown_change(now, before)
    tone = "" if not bad or text == "same" else "worse" if now > before else "better"
    return f'<em class="{tone}">{escape(text)}</em>'


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _total(figures: Figures, name: str) -> list[float]:
    return _added([queue.series[name] for queue in figures.queues])


def _added(columns: Sequence[Sequence[float | None]]) -> list[float]:
    return [sum(value or 0 for value in values) for values in zip(*columns, strict=True)]


def attention_section(figures: Figures) -> str:
    """The queues that need attention, why, and what to run."""
    found = attention(figures)
    if not found:
        return (
            '<section><h2>Queues that need attention</h2><p class="fine">None: every queue is '
            "claimed from, keeps up, and few of its deliveries fail.</p></section>"
        )
    cards = "".join(
        f'<article class="card"><h3>{escape(one.queue)}</h3><ul>'
        + "".join(f"<li>{escape(_capital(reason))}.</li>" for reason in one.reasons)
        + "</ul>"
        + "".join(map(_command, one.commands))
        + "</article>"
        for one in found[:_MOST_ATTENTION]
    )
    more = len(found) - _MOST_ATTENTION
    note = f'<p class="about">{more} more are in the table of queues.</p>' if more > 0 else ""
    return section("Queues that need attention", f'<div class="cards">{cards}</div>{note}')


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _command(command: str) -> str:
    return (
        f'<div class="command"><code>{escape(command)}</code>'
        '<button type="button" class="copy" hidden>Copy</button></div>'
    )


def failures_section(figures: Figures) -> str:
    """The failures by fingerprint, with an example and the command that redelivers them."""
    if not figures.failures:
        return '<section><h2>Top failures</h2><p class="fine">No error was reported.</p></section>'
    cards = "".join(_failure(one, figures) for one in figures.failures[:_MOST_FAILURES])
    more = len(figures.failures) - _MOST_FAILURES
    note = f'<p class="about">{more} more are in the table failures.</p>' if more > 0 else ""
    about = '<p class="about">Errors that differ only in names and numbers count as one.</p>'
    return f"<section><h2>Top failures</h2>{about}{cards}{note}</section>"


def _failure(one: Failure, figures: Figures) -> str:
    example = escape(one.example[:_MOST_ERROR] or "(no error was given)")
    queues = ", ".join(escape(queue) for queue in one.queues[:_MOST_NAMES])
    more = len(one.queues) - _MOST_NAMES
    about = (
        f"{queues}{f' and {more} more' * (more > 0)} · {shown_number(one.failed)} failed · "
        f"last {shown_time(one.last)}"
    )
    messages = ", ".join(map(str, one.messages))
    replay = _command(replay_command(one, one.queues[0])) if one.failed else ""
    return (
        '<details class="failure"><summary>'
        f'<b title="times">{shown_number(one.count)}</b>'
        f'<span class="pattern">{escape(one.pattern)}<small>{about}</small></span>'
        f"{_failure_change(one, figures)}</summary><pre>{example}</pre>"
        f'<p class="about">Messages {escape(messages)} · fingerprint '
        f"<code>{escape(one.fingerprint)}</code></p>{replay}</details>"
    )


def _failure_change(one: Failure, figures: Figures) -> str:
    if not figures.has_previous:
        return ""
    if one.count == one.before:
        return "<em>as many as before</em>"
    text = shown_change(one.count, one.before)
    text += " as many" * text.endswith("times")
    return f'<em class="{"worse" if one.count > one.before else "better"}">{escape(text)}</em>'


# -- tables ----------------------------------------------------------------------------


def tables_section(figures: Figures) -> str:
    """Queues, topics and consumers."""
    return _queues(figures) + _topics(figures) + _consumers(figures)


def _queues(figures: Figures) -> str:
    titles = (
        "queue", "activity", "arrivals", "change", "acked", "failed", "retried", "waiting now",
        "empty in",
        "wait p50",
        "wait p95",
        "work p95",
    )  # fmt: skip
    rows = [_queue_row(queue, figures) for queue in figures.queues]
    return section("Queues", table("queues", titles, rows, searchable=True))


def _queue_row(queue: QueueFigures, figures: Figures) -> list[Cell]:
    now = queue.current
    empty_ms = _empty_in_ms(queue, figures.period.length)
    return [
        Cell(escape(queue.name), queue.name),
        Cell(sparkline(queue.series["arrivals"])),
        _number(now.arrivals),
        Cell(_change(now.arrivals, queue.previous.arrivals, figures), right=True),
        _number(now.acks),
        _percent(now.failures, now.settled, alarm=True),
        _percent(now.nacks + now.lapses, now.claims),
        _number(queue.now.depth),
        Cell(
            "never" if empty_ms is None else shown_ms(empty_ms) if empty_ms else _NOTHING,
            float("1e18") if empty_ms is None else empty_ms,
            right=True,
        ),
        *_durations(queue.wait.p50, queue.wait.p95, queue.work.p95),
    ]


def _empty_in_ms(queue: QueueFigures, seconds: int) -> float | None:
    """When the queue is empty at the pace of the period; None: never."""
    if not queue.now.depth:
        return 0.0
    gain = -queue.current.change
    return 1000 * queue.now.depth * seconds / gain if gain > 0 else None


def _topics(figures: Figures) -> str:
    total = sum(topic.messages for topic in figures.topics)
    rows = [
        [
            Cell(escape(topic.name), topic.name),
            Cell(sparkline(topic.series)),
            _number(topic.messages),
            _percent(topic.messages, total),
            Cell(_change(topic.messages, topic.messages_before, figures), right=True),
            Cell(shown_bytes(topic.bytes), topic.bytes, right=True),
            Cell(
                shown_bytes(topic.bytes / topic.messages if topic.messages else 0),
                topic.bytes / topic.messages if topic.messages else 0,
                right=True,
            ),
        ]
        for topic in figures.topics
    ]
    titles = ("topic", "activity", "messages", "share", "change", "payload", "per message")
    return section("Topics", table("topics", titles, rows, searchable=True))


def _consumers(figures: Figures) -> str:
    rows = [
        [
            Cell(escape(one.name), one.name),
            Cell(escape(one.queue), one.queue),
            _number(one.count),
            _percent(one.not_acked, one.count),
            *_durations(one.work.p50, one.work.p95, one.longest),
        ]
        for one in figures.consumers[:_MOST_CONSUMERS]
    ]
    titles = ("consumer", "queue", "claims that ended", "not acked", "p50", "p95", "longest")
    return section("Slowest consumers", table("consumers", titles, rows))


def _number(value: float) -> Cell:
    return Cell(shown_number(value), value, right=True)


def _percent(part: float, whole: float, *, alarm: bool = False) -> Cell:
    text = shown_percent(part, whole) if part else _NOTHING
    share = _share(part, whole)
    marked = f'<b class="bad">{text}</b>' if alarm and share >= FAILING else text
    return Cell(marked, share, right=True)


def _durations(*values: float | None) -> list[Cell]:
    return [
        Cell(
            _NOTHING if value is None else shown_ms(value),
            -1 if value is None else value,
            right=True,
        )
        for value in values
    ]


def _change(now: float, before: float, figures: Figures) -> str:
    return (
        escape(shown_change(now, before)) if figures.has_previous and (now or before) else _NOTHING
    )
