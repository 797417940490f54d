"""Output of commands: tables for people, aligned text for pipes, JSON for programs.

Data goes to stdout; progress, notes and errors go to stderr. With ``--json`` a command prints one
JSON document, or one JSON value per line if its output is unbounded. Otherwise a terminal gets
tables with colours, and a pipe the same columns as plain text, untruncated, with bare numbers.
rich is imported only if there is a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO, Final, TypeAlias

import click
import msgspec
from msgspec import Struct

from penstock.cli.amounts import to_header
from penstock.cli.showing import safe
from penstock.model.message import HeaderValue

__all__ = [
    "Cell",
    "Column",
    "colour",
    "document",
    "fields",
    "headers",
    "line",
    "note",
    "raw_output",
    "setting",
    "table",
]

#: None is an empty cell.
Cell: TypeAlias = str | int | bool | None

_GAP: Final = "  "
_EMPTY: Final = (None, "")
#: The width that a foldable column keeps on a narrow terminal.
_LEAST_WIDE: Final = 16


class Column(Struct, frozen=True):
    """One column: its title, alignment and style on a terminal."""

    title: str
    right: bool = False
    style: str = ""
    alarm: bool = False
    """Highlight numbers other than zero."""
    wide: bool = False
    """Cells may be long: on a terminal they are folded, so that the others need not be."""


def document(value: object) -> None:
    """Print one JSON document: indented on a terminal, on one line elsewhere."""
    _write(msgspec.json.format(_encode(value), indent=2 if sys.stdout.isatty() else -1))


def line(value: object) -> None:
    """Print one JSON value on a line of its own, and flush it."""
    _write(msgspec.json.format(_encode(value), indent=-1))


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], empty: str) -> None:
    """Print rows under their titles, or ``empty`` on stderr if there are none."""
    listed = [tuple(row) for row in rows]
    if not listed:
        note(empty)
    elif sys.stdout.isatty():
        _draw(columns, listed)
    else:
        _align(columns, listed)


def fields(pairs: Iterable[tuple[str, Cell]]) -> None:
    """Print the fields of one object, one per line; empty ones are left out."""
    shown = [(name, _plain(value)) for name, value in pairs if value not in _EMPTY]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        click.echo(click.style(f"{name:{width}}", dim=True) + _GAP + text)


def headers(given: Mapping[str, HeaderValue]) -> str:
    """Headers in the form that ``publish --header`` accepts."""
    return " ".join(f"{name}={_value(value)}" for name, value in given.items())


def setting(value: str | float) -> str:
    """A setting as in the settings file, where booleans are true and false, not yes and no."""
    return _encode(value).decode() if isinstance(value, bool) else str(value)


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


def _write(encoded: bytes) -> None:
    stream = raw_output()
    stream.write(encoded + b"\n")
    stream.flush()


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def _value(value: HeaderValue) -> str:
    # Text that looks like a number or boolean keeps its quotes, so that it parses back as text.
    if isinstance(value, str) and to_header(f"h={value}") == ("h", value):
        return value
    return _encode(value).decode()


def _plain(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return safe(str(value))


def _align(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    lines = [[column.title for column in columns]]
    lines += ([_plain(cell) for cell in row] for row in rows)
    widths = [max(len(cells[place]) for cells in lines) for place in range(len(columns))]
    for cells in lines:
        parts = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        click.echo(_GAP.join(parts).rstrip())


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
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


def _styled(cell: Cell, column: Column) -> tuple[str, str]:
    is_number = isinstance(cell, int) and not isinstance(cell, bool)
    text = f"{cell:,}" if is_number and column.right else _plain(cell)
    if is_number and not cell:
        return text, "dim"
    return text, "bold red" if column.alarm else column.style
