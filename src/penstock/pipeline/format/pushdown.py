"""Filter pushdown: Spark's filters as offset ranges and server filters, if exactly equivalent.

Spark does not re-apply a filter that a source accepts, so a filter is accepted only if the server
evaluates it exactly as Spark does, including NULL. All others are left to Spark. Both compare text
by code point and integers by value; a time is compared as the millisecond that it falls into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from penstock.errors import BadFilter
from penstock.filters import parse
from penstock.filters.tree import INT64_MAX, INT64_MIN
from penstock.model.limits import MAX_OFFSET
from penstock.pipeline.format.schemas import MESSAGE_FIELDS

__all__ = ["NOTHING", "Pushed", "Pushing", "push"]

_TEXT: Final = frozenset({"topic", "key", "partition_key", "replace_key", "content_type"})
_NUMBERS: Final = frozenset({"priority", "size"})
_NEVER_NULL: Final = frozenset({"offset", "id", "topic", "priority", "size", "timestamp"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_Comparison: TypeAlias = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_SIGNS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_FUNCTIONS: Final[dict[type[Filter], str]] = {
    StringStartsWith: "starts_with",
    StringEndsWith: "ends_with",
    StringContains: "contains",
}


class Pushed(Struct, frozen=True):
    """What to read: offsets from ``low`` to below ``high`` for which ``where`` is TRUE."""

    low: int = 0
    high: int = MAX_OFFSET + 1
    where: str | None = None


#: Nothing was pushed.
NOTHING: Final = Pushed()


def push(filters: Iterable[Filter], pushed: Pushed) -> tuple[Pushed, list[Filter]]:
    """Add filters to ``pushed``; returns also those that Spark has to apply itself."""
    left: list[Filter] = []
    for one in filters:
        added = _narrowed(one, pushed) or _tightened(one, pushed)
        if added is None:
            left.append(one)
        else:
            pushed = added
    return pushed, left


class Pushing:
    """A ``pushFilters`` that works with pushdown enabled or disabled.

    Spark disables pushdown into Python sources by default, and then rejects readers that override
    ``pushFilters``. It compares ``__func__``, which here is that of the base class.
    """

    def __init__(self, take: Callable[[Iterable[Filter]], list[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._take = take

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Accept the filters that can be pushed down; returns the rest."""
        return self._take(filters)


# -- offsets ---------------------------------------------------------------------------


def _narrowed(one: Filter, pushed: Pushed) -> Pushed | None:
    """The range after a comparison of offsets; None if the filter is not one."""
    if not isinstance(one, _Comparison) or one.attribute != ("offset",):
        return None
    value = one.value
    if type(value) is not int:
        return None
    low, high = pushed.low, pushed.high
    if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
        low = max(low, value + isinstance(one, GreaterThan))
    if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
        high = min(high, value + (not isinstance(one, LessThan)))
    return replace(pushed, low=low, high=high)


# -- a filter of the server ------------------------------------------------------------


def _tightened(one: Filter, pushed: Pushed) -> Pushed | None:
    """The filter with one more condition; None if it cannot be expressed or is too long."""
    if isinstance(one, IsNotNull) and _column(one.attribute) in _NEVER_NULL:
        return pushed
    text = _condition(one)
    if text is None:
        return None
    joined = text if pushed.where is None else f"{pushed.where} AND {text}"
    try:
        parse(joined)
    except BadFilter:
        return None
    return replace(pushed, where=joined)


def _condition(one: Filter) -> str | None:
    """The same condition in the server's filter language."""
    match one:
        case Not(child=EqualNullSafe()):
            return None
        case Not(child=child):
            inner = _condition(child)
            return None if inner is None else f"NOT ({inner})"
        case IsNull(attribute=path) | IsNotNull(attribute=path):
            return _nullness(path, isinstance(one, IsNull))
        case EqualNullSafe(attribute=path, value=value):
            # Only at the top level, where NULL and FALSE are equivalent.
            return _nullness(path, True) if value is None else _compared(path, EqualTo, value)
        case In(attribute=path, value=values):
            return _among(path, values)
        case StringStartsWith() | StringEndsWith() | StringContains():
            return _called(one)
        case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            return _compared(one.attribute, type(one), one.value)
        case _:
            return None


def _compared(path: Sequence[str], kind: type[Filter], value: Any) -> str | None:
    name = _column(path)
    if name == "timestamp":
        return _timed(kind, value)
    literal = _literal(name, value)
    return None if literal is None else f"{_field(name)} {_SIGNS[kind]} {literal}"


def _timed(kind: type[Filter], value: Any) -> str | None:
    """Compare whole milliseconds: an instant between two of them is rounded up or down."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    whole, rest = divmod(value - _EPOCH, _MILLISECOND)
    if rest and kind is EqualTo:
        return None
    # Strictly below 1.5 is below 2; at least 1.5 is at least 2; the others round down.
    up = bool(rest) and kind in {LessThan, GreaterThanOrEqual}
    return f"published_at {_SIGNS[kind]} {whole + up}"


def _among(path: Sequence[str], values: Sequence[Any]) -> str | None:
    name = _column(path)
    literals = [literal for value in values if (literal := _literal(name, value)) is not None]
    if not literals or len(literals) != len(values):
        return None
    return f"{_field(name)} IN ({', '.join(literals)})"


def _called(one: StringStartsWith | StringEndsWith | StringContains) -> str | None:
    name = _column(one.attribute)
    literal = _literal(name, one.value) if name in _TEXT else None
    return None if literal is None else f"{_FUNCTIONS[type(one)]}({_field(name)}, {literal})"


def _nullness(path: Sequence[str], null: bool) -> str | None:
    name = _column(path)
    return f"{_field(name)} IS {'' if null else 'NOT '}NULL" if name in _TEXT else None


def _literal(name: str, value: Any) -> str | None:
    if name in _TEXT and isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if name in _NUMBERS and type(value) is int and INT64_MIN <= value <= INT64_MAX:
        return str(value)
    return None


def _column(path: Sequence[str]) -> str:
    """The name of a top-level column; empty for a nested field."""
    return path[0] if len(path) == 1 else ""


def _field(column: str) -> str:
    """The name of a column in the server's filter language."""
    return MESSAGE_FIELDS.get(column, column)
