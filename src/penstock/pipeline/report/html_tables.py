"""Tables of the page as HTML, which its script sorts and searches."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from msgspec import Struct

__all__ = ["Cell", "section", "table"]

#: Rows per table; the Parquet tables have the rest.
_MOST_ROWS: Final = 200
#: Rows from which a table can be searched.
_SEARCHABLE: Final = 9


class Cell(Struct, frozen=True):
    """A cell of a table; ``value`` is what the column is sorted by."""

    html: str
    value: float | str | None = None
    right: bool = False


def table(
    name: str, titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, searchable: bool = False
) -> str:
    """A table; ``name`` identifies it on the page."""
    if not rows:
        return '<p class="fine">None.</p>'
    rights = [cell.right for cell in rows[0]]
    head = "".join(
        f'<th{" class=n" * right} scope="col">{escape(title)}</th>'
        for title, right in zip(titles, rights, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:_MOST_ROWS])
    search = (
        f'<input type="search" placeholder="Find in {name}" aria-label="Find in {name}" '
        f'data-finds="{name}" hidden>'
        if searchable and len(rows) >= _SEARCHABLE
        else ""
    )
    more = len(rows) - _MOST_ROWS
    note = f'<p class="about">{more} more are in the tables.</p>' if more > 0 else ""
    return (
        f'{search}<div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-value="{escape(str(cell.value), quote=True)}"'
    return f"<td{' class=n' * cell.right}{value}>{cell.html}</td>"


def section(title: str, content: str) -> str:
    """A part of the page under its title."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"
