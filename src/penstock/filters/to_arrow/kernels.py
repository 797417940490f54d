"""The operators of a filter on typed columns: the rules of ``values`` for whole columns (R1).

Arrow's own kernels differ from the language in three ways, which are corrected here: they
compare int64 with float64 by rounding the integer, they raise or wrap on overflow, and they
have no remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters import tree as t
from penstock.filters import values
from penstock.filters.like import ONE, Pattern, Piece, matcher
from penstock.filters.to_arrow.batch import Typed
from penstock.filters.words import words_matcher

__all__ = [
    "MAX_RE2_PATTERN",
    "UNKNOWN",
    "arithmetic",
    "compare",
    "is_in",
    "is_null",
    "like",
    "negate",
    "words",
]

#: NULL as a condition, for every row.
# Taken from arrays of nulls: converting a value makes pyarrow import pandas, which takes longer
# than all other imports of a Spark process that plans a read.
UNKNOWN: Final = pa.nulls(1, pa.bool_())[0]
_NO_INTEGER: Final = pa.nulls(1, pa.int64())[0]
_NO_REAL: Final = pa.nulls(1, pa.float64())[0]
_TWO_63: Final = 2.0**63
#: The longest LIKE pattern that is given to RE2; see :func:`like`.
MAX_RE2_PATTERN: Final = 64

_COMPARE: Final[dict[t.CompareOperator, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compare(sign: t.CompareOperator, left: Typed, right: Typed) -> pa.Array:
    """``left sign right``: a row has a verdict if both sides have the same type."""
    kernel = _COMPARE[sign]
    verdicts = []
    if left.text is not None and right.text is not None:
        verdicts.append(kernel(left.text, right.text))
    if left.truth is not None and right.truth is not None:
        verdicts.append(kernel(pc.cast(left.truth, pa.int8()), pc.cast(right.truth, pa.int8())))
    if left.integer is not None and right.integer is not None:
        verdicts.append(kernel(left.integer, right.integer))
    if left.real is not None and right.real is not None:
        verdicts.append(kernel(left.real, right.real))
    if left.integer is not None and right.real is not None:
        verdicts.append(_compare_exactly(sign, left.integer, right.real))
    if left.real is not None and right.integer is not None:
        verdicts.append(_compare_exactly(values.MIRROR[sign], right.integer, left.real))
    return _first(verdicts, UNKNOWN)


def _compare_exactly(sign: t.CompareOperator, integer: pa.Array, real: pa.Array) -> pa.Array:
    """Compare with the floor of ``real``, which int64 represents exactly if it is in range."""
    above = pc.greater_equal(real, _TWO_63)
    outside = pc.or_(above, pc.less(real, -_TWO_63))
    floor = pc.floor(real)
    whole = pc.cast(pc.if_else(outside, 0.0, floor), pa.int64())
    fraction = pc.greater(real, floor)
    same = pc.and_(pc.equal(integer, whole), pc.invert(outside))
    below = pc.and_(pc.less(integer, whole), pc.invert(outside))
    equal = pc.and_(same, pc.invert(fraction))
    less = pc.or_(above, pc.or_(below, pc.and_(same, fraction)))
    match sign:
        case "=":
            # Both comparisons must use the integer, so that a NULL one stays NULL.
            return pc.and_(equal, pc.equal(integer, integer))
        case "<>":
            return pc.invert(pc.and_(equal, pc.equal(integer, integer)))
        case "<":
            return less
        case ">=":
            return pc.invert(less)
        case "<=":
            return pc.or_(less, equal)
        case _:
            return pc.invert(pc.or_(less, equal))


def arithmetic(sign: t.ArithmeticOperator, left: Typed, right: Typed) -> Typed:
    """``left sign right``, NULL if the result does not fit its type."""
    if sign == "/":
        return Typed(real=_finite(_reals(pc.divide, left, right)))
    integer = None
    if left.integer is not None and right.integer is not None:
        integer = _INTEGERS[sign](left.integer, right.integer)
    if sign == "%" or (left.real is None and right.real is None):
        return Typed(integer=integer)
    real = _finite(_reals(_REALS[sign], left, right))
    if real is not None and left.integer is not None and right.integer is not None:
        both = pc.and_(pc.is_valid(left.integer), pc.is_valid(right.integer))
        real = pc.if_else(both, _NO_REAL, real)
    return Typed(integer=integer, real=real)


def _reals(kernel: Callable[[Any, Any], Any], left: Typed, right: Typed) -> pa.Array | None:
    a, b = _as_real(left), _as_real(right)
    return None if a is None or b is None else kernel(a, b)


def _as_real(value: Typed) -> pa.Array | None:
    if value.integer is None:
        return value.real
    rounded = pc.cast(value.integer, pa.float64(), safe=False)
    return rounded if value.real is None else pc.coalesce(value.real, rounded)


def _finite(real: pa.Array | None) -> pa.Array | None:
    return None if real is None else pc.if_else(pc.is_finite(real), real, _NO_REAL)


def _add(a: pa.Array, b: pa.Array) -> pa.Array:
    total = pc.add(a, b)
    wrapped = pc.bit_wise_and(pc.bit_wise_xor(a, total), pc.bit_wise_xor(b, total))
    return pc.if_else(pc.less(wrapped, 0), _NO_INTEGER, total)


def _subtract(a: pa.Array, b: pa.Array) -> pa.Array:
    difference = pc.subtract(a, b)
    wrapped = pc.bit_wise_and(pc.bit_wise_xor(a, b), pc.bit_wise_xor(a, difference))
    return pc.if_else(pc.less(wrapped, 0), _NO_INTEGER, difference)


def _multiply(a: pa.Array, b: pa.Array) -> pa.Array:
    """Detect wrapping by dividing back; -1 times the lowest int64 is checked separately."""
    product = pc.multiply(a, b)
    divisor = pc.if_else(pc.or_(pc.equal(a, 0), pc.equal(a, -1)), 1, a)
    undone = pc.equal(pc.divide(product, divisor), b)
    minus = pc.and_(pc.equal(a, -1), pc.not_equal(b, t.INT64_MIN))
    fits = pc.or_(pc.or_(pc.equal(a, 0), minus), pc.and_(undone, pc.not_equal(a, -1)))
    return pc.if_else(fits, product, _NO_INTEGER)


def _remainder(a: pa.Array, b: pa.Array) -> pa.Array:
    """The sign is that of the dividend. Dividing by -1 leaves 0, and must not overflow."""
    special = pc.or_(pc.equal(b, 0), pc.equal(b, -1))
    divisor = pc.if_else(special, 1, b)
    rest = pc.subtract(a, pc.multiply(pc.divide(a, divisor), divisor))
    return pc.if_else(pc.equal(b, 0), _NO_INTEGER, rest)


_INTEGERS: Final[dict[t.ArithmeticOperator, Callable[[Any, Any], Any]]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "%": _remainder,
}
_REALS: Final[dict[t.ArithmeticOperator, Callable[[Any, Any], Any]]] = {
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
}


def negate(value: Typed) -> Typed:
    """``-value``; the lowest int64 has no negation."""
    integer = None if value.integer is None else _subtract(pa.scalar(0, pa.int64()), value.integer)
    real = None if value.real is None else _finite(pc.negate(value.real))
    return Typed(integer=integer, real=real)


def is_null(value: Typed) -> pa.Array:
    """Whether a row has no value of any type."""
    absent = [pc.is_null(part) for part in value if part is not None]
    return reduce(pc.and_, absent) if absent else pa.scalar(True)


def is_in(value: Typed, items: tuple[t.Constant, ...]) -> pa.Array:
    """The OR of ``value = item``, with one set lookup for strings and one for integers."""
    texts = {item.value for item in items if isinstance(item, t.Text)}
    numbers = {item.value for item in items if isinstance(item, t.Integer | t.Float)}
    truths = {item.value for item in items if isinstance(item, t.Boolean)}
    kinds = sum(map(bool, (texts, numbers, truths)))
    # A miss is FALSE only if every item is comparable; a NULL item or another type makes it NULL.
    miss = UNKNOWN if kinds > 1 or t.Null() in items else pa.scalar(False)
    wholes = {int(n) for n in numbers if n == int(n) and -(2**63) <= n < 2**63}
    reals = {float(n) for n in numbers if float(n) == n}
    verdicts = []
    if value.text is not None and texts:
        verdicts.append(_hit(value.text, _member(value.text, texts, pa.string()), miss))
    if value.integer is not None and numbers:
        verdicts.append(_hit(value.integer, _member(value.integer, wholes, pa.int64()), miss))
    if value.real is not None and numbers:
        verdicts.append(_hit(value.real, _any_equal(value.real, reals), miss))
    if value.truth is not None and truths:
        verdicts.append(_hit(value.truth, _any_equal(value.truth, truths), miss))
    return _first(verdicts, UNKNOWN)


def _hit(part: pa.Array, found: pa.Array, miss: pa.Scalar) -> pa.Array:
    return pc.if_else(pc.is_valid(part), pc.if_else(found, True, miss), UNKNOWN)


def _member(part: pa.Array, wanted: Collection[str | int], type_: pa.DataType) -> pa.Array:
    return pc.is_in(part, value_set=pa.array(wanted, type_))


def _any_equal(part: pa.Array, wanted: Collection[float]) -> pa.Array:
    """Equality instead of a set: Arrow's hash distinguishes -0.0 from 0.0."""
    return reduce(pc.or_, [pc.equal(part, item) for item in wanted], pa.scalar(False))


def like(text: pa.Array, pattern: Pattern) -> pa.Array:
    """``text LIKE pattern``: RE2 for short patterns, Penstock's matcher per row for long ones.

    RE2 never backtracks, but its time is pattern times text: 2,000 characters against 16 KiB
    took 0.4 s per row, and ``matcher`` 3 ms.
    """
    if sum(map(len, pattern.pieces)) > MAX_RE2_PATTERN or isinstance(text, pa.Scalar):
        return _like_by_row(text, matcher(pattern))
    expression = "(?s:.*)".join(map(_expression, pattern.pieces))
    return pc.match_substring_regex(text, rf"\A{expression}\z")


def words(text: pa.Array | pa.Scalar, pattern: str) -> pa.Array:
    """``matches_words(text, pattern)``, evaluated once per distinct text: topics recur."""
    matches = words_matcher(pattern)
    if isinstance(text, pa.Scalar):
        return _like_by_row(text, matches)
    encoded = text.dictionary_encode()
    return _like_by_row(encoded.dictionary, matches).take(encoded.indices)


def _like_by_row(text: pa.Array | pa.Scalar, matches: Callable[[str], bool]) -> pa.Array:
    if isinstance(text, pa.Scalar):
        return pa.scalar(values.like(matches, text.as_py()), pa.bool_())
    return pa.array([values.like(matches, row) for row in text.to_pylist()], pa.bool_())


def _expression(piece: Piece) -> str:
    return "".join(
        rf"\x{{{ord(part):x}}}" if isinstance(part, str) else "(?s:.)"
        for part in piece
        if part is ONE or isinstance(part, str)
    )


def _first(verdicts: list[pa.Array], otherwise: pa.Scalar) -> pa.Array:
    if not verdicts:
        return otherwise
    return verdicts[0] if len(verdicts) == 1 else pc.coalesce(*verdicts)
