"""Output of commands: tables for people, aligned text for pipes, JSON for programs.

Data goes to stdout; progress, notes and errors go to stderr. With ``--json`` a command prints one
JSON document, or one JSON value per line if its output is unbounded. Otherwise a terminal gets
tables with colours, and a pipe the same columns as plain text, untruncated, with bare numbers.
rich is imported only if there is a terminal.

The content of messages is untrusted. Control characters are shown as escapes, so that no header
or error text can move the cursor or repaint the screen.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import BinaryIO, Final, Generic, TypeAlias, TypeVar

import click
import msgspec
from msgspec import Struct

from penstock.cli.amounts import to_header
from penstock.cli.options import choices
from penstock.model.message import HeaderValue

__all__ = [
    "Cell",
    "Column",
    "age",
    "amount",
    "as_json",
    "colour",
    "document",
    "fields",
    "headers",
    "line",
    "moment",
    "note",
    "outcome",
    "preview",
    "raw_output",
    "safe",
    "summary",
    "table",
    "write_bytes",
]

T = TypeVar("T")

#: None is an empty cell.
Cell: TypeAlias = str | int | bool | None

_GAP: Final = "  "
_EMPTY: Final = (None, "")
#: The width that a foldable column keeps on a narrow terminal.
_LEAST_WIDE: Final = 16
#: C0 and C1 controls, line separators, and characters that change the direction of text.
_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_STEPS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_SIZES: Final = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


class Column(Struct, Generic[T], frozen=True):
    """One column: its title, its cell for an item, alignment and style on a terminal."""

    title: str
    cell: Callable[[T], Cell]
    right: bool = False
    style: str = ""
    alarm: bool = False
    """Highlight numbers other than zero."""
    wide: bool = False
    """Cells may be long: on a terminal they are folded, so that the others need not be."""


def as_json(value: object) -> bool:
    """With ``--json`` print the value, and return whether it was printed."""
    if choices().json:
        document(value)
    return choices().json


def outcome(value: object, text: str) -> None:
    """Print the value with ``--json``, otherwise the text."""
    if not as_json(value):
        click.echo(text)


def document(value: object) -> None:
    """Print one JSON document: indented on a terminal, on one line elsewhere."""
    _write_json(value, indent=2 if sys.stdout.isatty() else -1)


def line(value: object) -> None:
    """Print one JSON value on a line of its own, and flush it."""
    _write_json(value, indent=-1)


def table(columns: Sequence[Column[T]], items: Iterable[T], empty: str = "") -> None:
    """Print a row per item under the titles, or ``empty`` on stderr if there are none."""
    rows = [[column.cell(item) for column in columns] for item in items]
    if rows:
        (_draw if sys.stdout.isatty() else _align)(columns, rows)
    elif empty:
        note(empty)


def fields(pairs: Iterable[tuple[str, Cell]]) -> None:
    """Print the fields of one object, one per line; empty ones are left out."""
    shown = [(name, _plain(value)) for name, value in pairs if value not in _EMPTY]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        click.echo(click.style(f"{name:{width}}", dim=True) + _GAP + text)


def headers(given: Mapping[str, HeaderValue]) -> str:
    """Headers in the form that ``publish --header`` accepts."""
    return " ".join(f"{name}={_value(value)}" for name, value in given.items())


def colour() -> bool | None:
    """False if NO_COLOR is set (https://no-color.org); None lets the terminal decide."""
    return False if os.environ.get("NO_COLOR") else None


def note(text: str) -> None:
    """Print a note for people on stderr."""
    click.echo(safe(text, lines=True), err=True)


def raw_output() -> BinaryIO:
    """Stdout for payloads, as bytes."""
    # Text that was printed before must come first.
    sys.stdout.flush()
    return sys.stdout.buffer


def write_bytes(content: bytes) -> None:
    """Write bytes to stdout unchanged, and flush them."""
    stream = raw_output()
    stream.write(content)
    stream.flush()


def _write_json(value: object, *, indent: int) -> None:
    write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n")


def _value(value: HeaderValue) -> str:
    # Text that looks like a number or boolean keeps its quotes, so that it parses back as text.
    if isinstance(value, str) and to_header(f"h={value}") == ("h", value):
        return value
    return msgspec.json.encode(value).decode()


def _plain(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return safe(str(value))


def _align(columns: Sequence[Column[T]], rows: Sequence[Sequence[Cell]]) -> None:
    lines = [[column.title for column in columns]]
    lines += ([_plain(cell) for cell in row] for row in rows)
    widths = [max(len(cells[place]) for cells in lines) for place in range(len(columns))]
    for cells in lines:
        parts = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        click.echo(_GAP.join(parts).rstrip())


def _draw(columns: Sequence[Column[T]], rows: Sequence[Sequence[Cell]]) -> None:
    # Importing rich takes a tenth of a second; only terminals pay for it.
    from rich.cells import cell_len  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, header_style="bold underline", padding=(0, len(_GAP), 0, 0))
    cells: list[list[Text]] = [[] for _ in rows]
    needed = 0
    for place, column in enumerate(columns):
        shown = [_styled(row[place], column) for row in rows]
        if not any(text for text, _ in shown):
            continue  # An empty column would only take width from the others.
        for line_cells, (text, style) in zip(cells, shown, strict=True):
            line_cells.append(Text(text, style=style))
        longest = max(cell_len(text) for text in (column.title, *(text for text, _ in shown)))
        least = min(longest, _LEAST_WIDE) if column.wide else longest
        needed += least + len(_GAP)
        drawn.add_column(
            column.title,
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=not column.wide,
            min_width=least,
        )
    for line_cells in cells:
        drawn.add_row(*line_cells)
    console = Console(file=sys.stdout)
    # On a narrow terminal lines wrap: truncated cells could hide the relevant part.
    console.width = max(console.width, needed)
    console.print(drawn)


def _styled(cell: Cell, column: Column[T]) -> tuple[str, str]:
    is_number = isinstance(cell, int) and not isinstance(cell, bool)
    text = f"{cell:,}" if is_number and column.right else _plain(cell)
    if is_number and not cell:
        return text, "dim"
    return text, "bold red" if column.alarm else column.style


# -- single values -------------------------------------------------------------------------


def safe(text: str, *, lines: bool = False) -> str:
    """Escape everything that a terminal interprets; ``lines`` keeps newlines and tabs."""
    return _CONTROLS.sub(lambda found: _escape(found[0], lines), text)


def _escape(character: str, lines: bool) -> str:
    if lines and character in "\n\t":
        return character
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def preview(payload: bytes, width: int = 60) -> str:
    """The beginning of a payload on one line; bytes that are not text are escaped."""
    text = safe(payload[: width * 4].decode(errors="backslashreplace"))
    return text if len(text) <= width and len(payload) <= width * 4 else text[: width - 1] + "…"


def summary(error: str | None) -> str | None:
    """The first line of an error: in a table, the traceback is left out."""
    return None if error is None else error.partition("\n")[0]


def moment(at_ms: int | None) -> str:
    """A time in UTC, to the millisecond; empty for None."""
    if at_ms is None:
        return ""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def age(duration_ms: int | None) -> str:
    """A duration in its two largest units: ``2h5m``, ``31s``, ``250ms``."""
    if duration_ms is None:
        return ""
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    out = []
    for unit, size in _STEPS:
        if duration_ms >= size:
            out.append(f"{duration_ms // size}{unit}")
            duration_ms %= size
        elif out:
            break
        if len(out) == 2:
            break
    return "".join(out)


def amount(size_bytes: int) -> str:
    """A size in bytes, KiB, MiB or GiB."""
    for unit, size in _SIZES:
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} B"
