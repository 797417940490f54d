"""Which of many conditions on one source are TRUE, by value (R1).

A gate gives every row the number of a *class*: values for which every condition of the gate
has the same verdict. A class has a row of bits, one per branch of a filter. A bit is 0 if the
branch has a condition in this gate that is not TRUE for the class.

For plain conditions all classes are known beforehand: their constants divide the numbers into
intervals and name the strings that matter. For others (LIKE, functions, arithmetic) a string,
or a frequent integer, is evaluated when it is first seen, and cached; all other values are
evaluated per batch, one condition for all values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters.access import Source
from penstock.filters.to_arrow.batch import Columns, Typed
from penstock.filters.to_arrow.branches import constants
from penstock.filters.to_arrow.rows import Entries, Numbers
from penstock.filters.to_arrow.verdict import to_arrow
from penstock.filters.tree import INT64_MAX, INT64_MIN, Condition, Field, Text

__all__ = ["MAX_KNOWN", "WORD", "Gate", "PlainGate"]

#: Bits in a word.
WORD: Final = 64
#: Values, and classes, that a gate caches before it clears the cache.
MAX_KNOWN: Final = 65_536
#: Verdicts held in memory while values are evaluated, one byte each.
_MAX_VERDICTS: Final = 16_000_000

_TYPES: Final = (pa.string(), pa.int64(), pa.float64(), pa.bool_())


class Gate:
    """The conditions on ``source``; bit ``n`` depends on ``conditions[of_bit[n]]``.

    ``of_bit`` is ``len(conditions)`` if a branch has no condition here, and one more if there
    is no branch. The number of bits is a multiple of :data:`WORD`.
    """

    def __init__(self, source: Source, conditions: Sequence[Condition], of_bit: Numbers) -> None:
        self.source = source
        self._conditions = conditions
        self._of_bit = of_bit
        self._lines = np.empty((0, len(of_bit) // WORD), "<u8")
        self._forget()

    @property
    def lines(self) -> Numbers:
        """The bits of each class, in words of :data:`WORD` bits."""
        return self._lines

    def classes(self, entries: Entries, rows: int) -> Numbers:
        """The class of each row of a batch."""
        self._make_room()
        found: Numbers = np.full(entries.length, self._absent)
        for kind, part in enumerate(entries.value):
            if part is None:
                continue
            if not part.null_count:
                found = self._part(kind, part)
            else:
                there = part.is_valid().to_numpy(zero_copy_only=False)
                found[there] = self._part(kind, part.drop_null())
        if entries.rows is None:
            return found
        by_row = np.full(rows, self._absent)
        by_row[entries.rows] = found
        return by_row

    def _make_room(self) -> None:
        if len(self._numbers) > MAX_KNOWN:
            self._forget()

    def _forget(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._known: dict[str | int, int] = {}
        self._lines = self._lines[:0]
        self._absent = int(self._judge(Typed(), 1)[0])

    def _part(self, kind: int, part: pa.Array) -> Numbers:
        """The class of each value of one type."""
        if kind == 0:
            encoded = part.dictionary_encode()
            return _decoded(self._texts(encoded.dictionary), encoded)
        if kind == 1:
            encoded = part.dictionary_encode()
            if len(encoded.dictionary) < len(part) // 2:
                # Amounts, counts, years: the same numbers recur.
                return _decoded(self._remembered(kind, encoded.dictionary), encoded)
        return self._judge(_of_kind(kind, part), len(part))

    def _texts(self, texts: pa.Array) -> Numbers:
        return self._remembered(0, texts)

    def _remembered(self, kind: int, part: pa.Array) -> Numbers:
        """The class of each value, from the cache where possible."""
        values = part.to_pylist()
        known = self._known
        if len(known) + len(values) > MAX_KNOWN:
            known.clear()
        new = [value for value in values if value not in known]
        if new:
            judged = self._judge(_of_kind(kind, pa.array(new, part.type)), len(new))
            known.update(zip(new, judged.tolist(), strict=True))
        return np.fromiter((known[value] for value in values), np.int64, len(values))

    def _judge(self, value: Typed, count: int) -> Numbers:
        """The class of each of ``count`` values, from the verdicts of all conditions."""
        step = max(1, _MAX_VERDICTS // (len(self._conditions) + 2))
        pieces = [
            self._judge_piece(_slice(value, start, step), min(step, count - start))
            for start in range(0, count, step)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _judge_piece(self, value: Typed, count: int) -> Numbers:
        columns = Columns.holding({self.source: value}, count)
        verdicts = np.empty((len(self._conditions) + 2, count), bool)
        verdicts[-2], verdicts[-1] = True, False
        for number, condition in enumerate(self._conditions):
            verdict = pc.fill_null(to_arrow(condition, columns), False)
            verdicts[number] = verdict.to_numpy(zero_copy_only=False)
        marks = np.ascontiguousarray(np.packbits(verdicts, axis=0).T)
        marks = marks.view(f"V{marks.shape[1]}").ravel()
        _, first, which = np.unique(marks, return_index=True, return_inverse=True)
        return self._number(marks[first], verdicts[:, first])[which]

    def _number(self, marks: Numbers, verdicts: Numbers) -> Numbers:
        """The class numbers of ``marks``; new ones get new rows of bits."""
        names = [mark.tobytes() for mark in marks]
        new = [place for place, name in enumerate(names) if name not in self._numbers]
        if new:
            for place in new:
                self._numbers[names[place]] = len(self._numbers)
            bits = verdicts[:, new].T[:, self._of_bit]
            octets = np.ascontiguousarray(np.packbits(bits, axis=1, bitorder="little"))
            self._lines = np.concatenate([self._lines, octets.view("<u8")])
        return np.array([self._numbers[name] for name in names], np.int64)


class PlainGate(Gate):
    """A gate of plain conditions: no condition is evaluated when rows arrive."""

    def __init__(self, source: Source, conditions: Sequence[Condition], of_bit: Numbers) -> None:
        super().__init__(source, conditions, of_bit)
        found = constants(conditions)
        texts = [node.value for node in found if isinstance(node, Text)]
        numbers = [node.value for node in found if not isinstance(node, Text)]
        self._wanted = pa.array(texts, pa.string())
        # A text longer than all of them differs from all of them.
        other = "x" * (1 + max(map(len, texts), default=0))
        self._by_text = self._judge_all(0, [*texts, other])
        self._whole_cuts = np.array(_whole_cuts(numbers), np.int64)
        self._real_cuts = np.array(_real_cuts(numbers), np.float64)
        self._by_whole = self._judge_all(1, _whole_samples(self._whole_cuts.tolist()))
        self._by_real = self._judge_all(2, _real_samples(self._real_cuts.tolist()))
        self._by_truth = self._judge_all(3, [False, True])

    def words(self, first: int, last: int) -> tuple[Numbers, Numbers, Numbers]:
        """The non-zero words of each class in the range.

        Returns where those of a class start, which words they are, and their bits.
        """
        where, word = np.nonzero(self._lines[:, first:last])
        starts = np.searchsorted(where, np.arange(len(self._lines) + 1))
        return starts, word + first, self._lines[where, word + first]

    def _make_room(self) -> None:
        """Does nothing: no classes are added after the constructor."""

    def _judge_all(self, kind: int, values: Sequence[str | float]) -> Numbers:
        """The classes of ``values``; empty if the source cannot have the type."""
        if isinstance(self.source, Field) and kind > 1:
            return np.empty(0, np.int64)
        return self._judge(_of_kind(kind, pa.array(values, _TYPES[kind])), len(values))

    def _part(self, kind: int, part: pa.Array) -> Numbers:
        match kind:
            case 1:
                table, places = self._by_whole, _interval(self._whole_cuts, part.to_numpy())
            case 2:
                table, places = self._by_real, _interval(self._real_cuts, part.to_numpy())
            case 3:
                flags = part.to_numpy(zero_copy_only=False)
                table, places = self._by_truth, flags.astype(np.int64)
            case _:
                return super()._part(kind, part)
        classes: Numbers = table[places]
        return classes

    def _texts(self, texts: pa.Array) -> Numbers:
        places = pc.fill_null(pc.index_in(texts, value_set=self._wanted), len(self._wanted))
        classes: Numbers = self._by_text[places.to_numpy()]
        return classes


def _of_kind(kind: int, part: pa.Array) -> Typed:
    return Typed(*(part if kind == n else None for n in range(len(_TYPES))))


def _decoded(classes: Numbers, encoded: pa.DictionaryArray) -> Numbers:
    """The class of each value, from the classes of the distinct values."""
    by_value: Numbers = classes[encoded.indices.to_numpy()]
    return by_value


def _slice(value: Typed, start: int, length: int) -> Typed:
    return value.map(lambda part: part.slice(start, length))


def _interval(cuts: Numbers, values: Numbers) -> Numbers:
    """2n for values below the n-th cut and above the previous one, 2n + 1 for the cut itself."""
    if not len(cuts):
        return np.zeros(len(values), np.int64)
    below = np.searchsorted(cuts, values)
    places: Numbers = 2 * below + (cuts[np.minimum(below, len(cuts) - 1)] == values)
    return places


def _whole_cuts(numbers: Sequence[float]) -> list[int]:
    """The floors of the numbers: each number is a cut, or between one and the next integer."""
    cuts = {math.floor(number) for number in numbers}
    return sorted(cut for cut in cuts if INT64_MIN <= cut <= INT64_MAX)


def _real_cuts(numbers: Sequence[float]) -> list[float]:
    """The float nearest to each number, above or below it."""
    return sorted({float(number) for number in numbers})


def _whole_samples(cuts: list[int]) -> list[int]:
    """One value per interval; for an empty interval, a value of a neighbouring one."""
    samples = [max(cuts[0] - 1, INT64_MIN)] if cuts else [0]
    for cut in cuts:
        samples += [cut, min(cut + 1, INT64_MAX)]
    return samples


def _real_samples(cuts: list[float]) -> list[float]:
    samples = [math.nextafter(cuts[0], -math.inf)] if cuts else [0.0]
    for cut in cuts:
        samples += [cut, math.nextafter(cut, math.inf)]
    return samples
