"""``penstock tail``: prints the log, its end or from a position, and follows it as it grows.

The log has everything that was published, in any queue or none. Reading it consumes nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Final, TypeAlias

import click

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.amounts import Parsed, is_count, to_duration_ms, to_time
from penstock.cli.line_format import entry_format
from penstock.cli.options import choices
from penstock.cli.printing import moment, preview, safe
from penstock.cli.session import lasting
from penstock.model.clock import SystemClock
from penstock.model.delivery import LogEntry, LogPage
from penstock.model.limits import MAX_PAGE
from penstock.model.message import Offset

__all__ = ["tail"]

#: Entries per read; fewer with payloads, because a page is held in memory.
_PAGE: Final = MAX_PAGE
_PAYLOAD_PAGE: Final = 50
#: How often to poll the end of the log while it does not grow.
_POLL_S: Final = 0.25
_LAST: Final = 10

Wanted: TypeAlias = Callable[[LogEntry], bool]
Writer: TypeAlias = Callable[[list[LogEntry]], None]


def _to_place(text: str) -> int | str | datetime:
    """``earliest``, ``latest``, an offset, or a time, which may be given as a duration ago."""
    if text in ("earliest", "latest"):
        return text
    if is_count(text):
        return int(text)
    try:
        if re.fullmatch(r"[0-9]{4}-.*", text):
            return to_time(text)
        ago_ms = to_duration_ms(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not earliest, latest, an offset, 10m (ago) or 2025-01-01T00:00Z."
        ) from None
    return datetime.fromtimestamp((SystemClock().now() - ago_ms) / 1000, UTC)


@click.command
@click.option("--where", help="Only messages for which this filter is TRUE.")
@click.option(
    "--from",
    "place",
    type=Parsed("earliest|latest|OFFSET|AGO|TIME", _to_place),
    help="Start there: an offset, 10m for ten minutes ago, 2025-01-01T00:00Z.",
)
@click.option(
    "--last",
    "-n",
    type=click.IntRange(0),
    default=_LAST,
    show_default=True,
    help="Without --from: this many entries from the end.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many.")
@click.option("--follow", "-f", is_flag=True, help="Continue as the log grows, until Ctrl-C.")
@click.option("--payloads", is_flag=True, help="Show payloads too.")
@click.option(
    "--format",
    "format_text",
    metavar="TEXT",
    help=r"Print this for each entry: '{topic} {id}\t{payload}'.",
)
@lasting
async def tail(
    q: QueueApi,
    /,
    where: str | None,
    place: int | str | datetime | None,
    last: int,
    limit: int | None,
    follow: bool,
    payloads: bool,
    format_text: str | None,
) -> None:
    """Print the log. With --json, one line per entry.

    \b
    Examples:
      penstock tail --follow
      penstock tail --from 10m --where "topic = 'orders' AND amount >= 100"
      penstock tail --from earliest --payloads --json > log.ndjson
      penstock tail --follow --format '{time} {topic} {headers.amount} {payload}'
    """
    write, payloads = _writer(format_text, payloads)
    wanted = _matcher(where)
    end = await q.log_end()
    if place is None:
        first, entries = int(end), await _last(q, wanted, last, end, payloads)
        write(entries[: limit or len(entries)])
        limit = None if limit is None else limit - len(entries)
    else:
        first = await _offset(q, place, end)
    if limit is not None and limit <= 0:
        return
    async for page in _pages(q, first, payloads, follow=follow):
        found = [entry for entry in page.entries if wanted(entry)]
        write(found if limit is None else found[:limit])
        if limit is not None:
            limit -= len(found)
            if limit <= 0:
                return


async def _pages(
    q: QueueApi, first: int, payloads: bool, *, follow: bool = False, before: int | None = None
) -> AsyncIterator[LogPage]:
    """Pages up to the end or ``before``; with ``follow``, also entries that are appended later."""
    size = _PAYLOAD_PAGE if payloads else _PAGE
    while before is None or first < before:
        page = await q.read_log(first, limit=size, payloads=payloads)
        if before is not None:
            entries = tuple(entry for entry in page.entries if entry.message.offset < before)
            page = LogPage(entries, page.next_offset)
        if page.entries:
            first = page.next_offset
            yield page
        elif follow:
            await asyncio.sleep(_POLL_S)
        else:
            return


async def _last(
    q: QueueApi, wanted: Wanted, count: int, end: Offset, payloads: bool
) -> list[LogEntry]:
    """The last ``count`` entries that match, searched backwards.

    Offsets have gaps: a store skips some when it is reopened, and retention removes others. After
    an empty range the next one is twice as long.
    """
    size = _PAYLOAD_PAGE if payloads else _PAGE
    found: list[LogEntry] = []
    before, step = int(end), size
    while before > 0 and len(found) < count:
        start = max(0, before - step)
        seen, older = False, []
        async for page in _pages(q, start, payloads, before=before):
            seen = True
            older += [entry for entry in page.entries if wanted(entry)]
            # Keep only the last ones, however long the range is.
            del older[: max(0, len(older) - count)]
        found = older[max(0, len(older) + len(found) - count) :] + found
        before, step = start, size if seen else step * 2
    return found


async def _offset(q: QueueApi, place: int | str | datetime, end: Offset) -> int:
    if isinstance(place, int):
        return place
    if isinstance(place, str):
        return 0 if place == "earliest" else end
    at = int(place.timestamp() * 1000)
    low, high = 0, int(end)
    while low < high:  # Bisect by publish time, which never decreases.
        middle = (low + high) // 2
        page = await q.read_log(middle, limit=1)
        if not page.entries or page.entries[0].message.published_at >= at:
            high = middle
        else:
            low = page.entries[0].message.offset + 1
    return low


def _matcher(where: str | None) -> Wanted:
    if where is None:
        return lambda _: True
    from penstock.filters import parse  # noqa: PLC0415  (only filters need the parser)

    compiled = parse(where)
    return lambda entry: compiled.matches(entry.message)


def _writer(format_text: str | None, payloads: bool) -> tuple[Writer, bool]:
    """Prints entries, and whether it needs their payloads."""
    if format_text is None:
        return _print, payloads
    if choices().json:
        raise click.UsageError("--format excludes --json.")
    to_line = entry_format(format_text)

    def write(entries: list[LogEntry]) -> None:
        printing.write_bytes(b"".join(to_line(entry) + b"\n" for entry in entries))

    return write, "payload" in to_line.fields


def _print(entries: list[LogEntry]) -> None:
    if choices().json:
        # The JSON form of the HTTP interface; nothing else here needs this import.
        from penstock.wire.payloads import shown_log  # noqa: PLC0415

        for shown in shown_log(LogPage(tuple(entries), Offset(0))).entries:
            printing.line(shown)
        return
    for entry in entries:
        found = entry.message
        parts = [
            click.style(str(found.offset), bold=True),
            click.style(moment(found.published_at), dim=True),
            found.topic,
            safe(printing.headers(found.headers)),
        ]
        if entry.payload is not None:
            parts.append(preview(entry.payload, 120))
        click.echo("  ".join(part for part in parts if part))
