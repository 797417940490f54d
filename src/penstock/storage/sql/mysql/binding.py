"""Statements with list and row parameters for MySQL, which has one ``?`` per value.

A list is written in parentheses, ``IN (:name)``, and becomes as many question marks as it has
values. A DELETE joins a derived table instead, ``(SELECT CAST(:name AS SIGNED) AS row_key)``, with
one row per value: the rows are then looked up one by one, while for an IN the server may scan a
small table completely, and wait for rows that others have locked there.

A statement that writes rows ends with ``VALUES :rows`` after its columns. Every number of question
marks is a different statement, which the server has to prepare. To keep them few, lists are padded
with their last value, and many rows are written in lots of a few fixed sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.storage.sql.statements import PARAMETER

__all__ = ["Statement"]

#: Rows per statement: up to _EXACT in one, more in lots of these sizes.
_EXACT: Final = 8
_LOTS: Final = (64, 32, 16, 8)
#: Values in a derived table per statement.
_EACH: Final = 128
_EACH_BEGINS: Final = "(SELECT CAST("
#: The maximum size of a value other than bytes and text.
_SMALL: Final = 12


class Statement:
    """A statement, parsed from its file."""

    def __init__(self, text: str) -> None:
        assert "?" not in text
        assert "%" not in text
        pieces = PARAMETER.split(text)
        self._pieces = pieces[::2]
        self._names = pieces[1::2]
        #: The list that becomes a derived table, if there is one.
        before = zip(self._names, self._pieces, strict=False)
        self._each = next((name for name, p in before if p.endswith(_EACH_BEGINS)), None)
        #: SQL by the number of values per parameter; 0 for a parameter that is not a list.
        self._known: dict[tuple[int, ...], str] = {}

    def bind(self, parameters: Mapping[str, object]) -> tuple[str, list[object]]:
        """The SQL to send, and its values in order."""
        values: list[object] = []
        shape: list[int] = []
        for name in self._names:
            value = parameters[name]
            if isinstance(value, list | tuple):
                filled = _filled(value)
                shape.append(len(filled))
                values += filled
            else:
                shape.append(0)
                values.append(value)
        return self._sql(tuple(shape)), values

    def all(self, parameters: Mapping[str, object]) -> Iterator[tuple[str, list[object]]]:
        """The same, split into several statements if it deletes very many rows."""
        values = parameters[self._each] if self._each is not None else None
        if not isinstance(values, list | tuple) or len(values) <= _EACH:
            yield self.bind(parameters)
            return
        assert self._each is not None
        for start in range(0, len(values), _EACH):
            yield self.bind({**parameters, self._each: values[start : start + _EACH]})

    def lots(
        self, rows: Sequence[Sequence[object]], most_bytes: int
    ) -> Iterator[tuple[str, list[object]]]:
        """The statement for all rows, in lots below this number of bytes if possible."""
        assert self._names == ["rows"]
        before, after = self._pieces
        for lot in _lots(rows, most_bytes):
            shape = (len(lot), len(lot[0]))
            sql = self._known.get(shape)
            if sql is None:
                row = f"({', '.join(['?'] * shape[1])})"
                sql = self._known[shape] = f"{before}{', '.join([row] * shape[0])}{after}"
            yield sql, [value for row in lot for value in row]

    def _sql(self, shape: tuple[int, ...]) -> str:
        sql = self._known.get(shape)
        if sql is None:
            sql = self._pieces[0]
            for size, name, piece in zip(shape, self._names, self._pieces[1:], strict=True):
                if name == self._each and sql.endswith(_EACH_BEGINS):
                    # Up to the second closing parenthesis: the first belongs to the CAST.
                    one = piece[: piece.index(")", piece.index(")") + 1)]
                    sql += f" UNION ALL {_EACH_BEGINS[1:]}".join([f"?{one}"] * (size or 1))
                    sql += piece.removeprefix(one)
                else:
                    sql += ", ".join(["?"] * (size or 1)) + piece
            self._known[shape] = sql
        return sql


def _filled(values: Sequence[object]) -> Sequence[object]:
    """The values, padded to a power of two with the last one; NULL if there are none."""
    if not values:
        return (None,)
    missing = (1 << (len(values) - 1).bit_length()) - len(values)
    return [*values, *([values[-1]] * missing)] if missing else values


def _lots(
    rows: Sequence[Sequence[object]], most_bytes: int
) -> Iterator[Sequence[Sequence[object]]]:
    start = 0
    while start < len(rows):
        left = len(rows) - start
        size = left if left <= _EXACT else next(lot for lot in _LOTS if lot <= left)
        while size > 1 and _weight(rows[start : start + size]) > most_bytes:
            size = (size + 1) // 2
        yield rows[start : start + size]
        start += size


def _weight(rows: Sequence[Sequence[object]]) -> int:
    """The approximate size of the rows in a request, in bytes."""
    return sum(
        len(value) * (4 if isinstance(value, str) else 1)
        if isinstance(value, bytes | str)
        else _SMALL
        for row in rows
        for value in row
    )
