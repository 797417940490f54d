"""Many filters over one record batch: the router's evaluator (R1).

``ManyFilters`` is compiled once and finds for each batch which filters are TRUE for which rows,
as :class:`~penstock.filters.index.FilterIndex` does for one message. Its cost hardly depends on
the number of filters: every branch of a filter is a bit, every source maps each row to a set
of bits (``gates``), and the AND of these over all sources is the answer. Filters are grouped by the
equality they require (``access``), so that the value of its source leaves only a few words of
bits to check. Only conditions on several sources, such as ``a + b > 5``, are evaluated one by
one, in the rows where everything else is TRUE.

numpy comes with pandas in the extra ``spark``; only this module, those that it imports and the
pipeline's router need it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters.access import Key, Source, choose_access
from penstock.filters.filter import Filter
from penstock.filters.to_arrow.batch import Columns
from penstock.filters.to_arrow.branches import Branch, GateKey, branches, parts_read, sources
from penstock.filters.to_arrow.gates import WORD, Gate, PlainGate
from penstock.filters.to_arrow.rows import Numbers, Rows
from penstock.filters.to_arrow.verdict import to_arrow
from penstock.filters.tree import And, Condition, Field, FieldName

__all__ = ["ManyFilters", "Matches"]

_SETS_KEPT: Final = 4
#: Pairs whose numbers fit 32 bits are sorted in half the time.
_INT32_MAX: Final = 2**31 - 1


class Matches(NamedTuple):
    """Pairs of a filter and a row that it is TRUE for, by filter and then by row."""

    rows: Numbers
    filters: Numbers
    """Numbers of filters, as in :attr:`ManyFilters.names`."""


class _Bit(NamedTuple):
    """One branch of a filter; ``branch`` is ``None`` in the padding bits of a word."""

    filter: int
    branch: Branch | None


class _Group(NamedTuple):
    """Adjacent words of bits that are found by the same source, or by none."""

    words: Numbers
    """All words of the group."""
    bits: Numbers
    """The bits in them that belong to a branch."""
    reached_by: PlainGate | None
    reached: tuple[Numbers, Numbers, Numbers] | None
    """The bits of the words that each class of ``reached_by`` leaves set."""
    gates: list[Gate]
    """The other gates."""


class ManyFilters:
    """Named filters, compiled for batches. Picklable; not thread-safe."""

    names: tuple[str, ...]
    """The names of the filters by their number, in order."""
    fields: tuple[FieldName, ...]
    """The system fields that are read from a batch."""
    headers: dict[str, str]
    """The headers that are read from a batch, by name, with the parts that matter."""

    def __init__(self, filters: Mapping[str, Filter]) -> None:
        self._filters = {name: filters[name] for name in sorted(filters)}
        self.names = tuple(self._filters)
        self._bits: list[_Bit] = []
        reached = self._place_bits()
        self._gates = self._build_gates()
        self._groups = [self._group(source, *span) for source, span in reached.items()]
        self._owner = np.array([bit.filter for bit in self._bits], np.int64)
        self._rests: list[Condition] = []
        self._rest_of = self._number_rests()
        read = {gate.source for gate in self._gates}.union(*map(sources, self._rests))
        self.fields = tuple(sorted(source.name for source in read if isinstance(source, Field)))
        self.headers = parts_read(filter_.tree for filter_ in self._filters.values())
        owners = Counter(bit.filter for bit in self._bits if bit.branch)
        self._twice = any(count > 1 for count in owners.values())

    def __len__(self) -> int:
        return len(self.names)

    def __reduce__(self) -> tuple[object, tuple[tuple[tuple[str, Filter], ...]]]:
        return _compiled, (tuple(self._filters.items()),)

    def match(self, batch: pa.RecordBatch) -> Matches:
        """Return which filters are TRUE for which rows of ``batch``.

        The batch has the columns of ``METADATA_SCHEMA`` or of the pipeline's ``log`` table; or only
        :attr:`fields` of those, and one column per part of :attr:`headers` (``flat_name``).
        """
        rows = Rows(batch, self.headers)
        if not len(rows) or not self.names:
            return Matches(np.empty(0, np.int64), np.empty(0, np.int64))
        classes = {
            id(gate): gate.classes(rows.entries(gate.source), len(rows)) for gate in self._gates
        }
        found = [_standing(group, classes, len(rows)) for group in self._groups]
        row = np.concatenate([where for where, _ in found])
        bit = np.concatenate([which for _, which in found])
        if self._rests:
            row, bit = self._check_rests(rows, row, bit)
        small = np.int32 if len(self) * len(rows) <= _INT32_MAX else np.int64
        pairs = np.sort((self._owner.take(bit) * len(rows) + row).astype(small))
        if self._twice:
            # Faster than ``np.unique``, which uses a hash table before it sorts.
            pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        filters, where = np.divmod(pairs, len(rows))
        return Matches(where, filters)

    # -- compiling -----------------------------------------------------------------------

    def _place_bits(self) -> dict[Source | None, tuple[int, int]]:
        """Give branches their bits; return the range of words of each source."""
        crowd: Counter[Key] = Counter()
        placed: dict[Source | None, list[tuple[str, int, Branch]]] = {}
        for number, filter_ in enumerate(self._filters.values()):
            for branch in branches(filter_.tree):
                key = _reach(branch, crowd)
                source, value = key or (None, None)
                placed.setdefault(source, []).append((repr(value), number, branch))
        spans: dict[Source | None, tuple[int, int]] = {}
        for source, entries in placed.items():
            first = len(self._bits) // WORD
            # Filters under one value are adjacent, so that few words contain any of them.
            entries.sort(key=lambda entry: entry[:2])
            self._bits += [_Bit(number, branch) for _, number, branch in entries]
            self._bits += [_Bit(0, None)] * (-len(self._bits) % WORD)
            spans[source] = (first, len(self._bits) // WORD)
        return spans

    def _build_gates(self) -> list[Gate]:
        found: dict[GateKey, dict[Condition, int]] = {}
        wanted: dict[GateKey, dict[int, int]] = {}
        for place, bit in enumerate(self._bits):
            for key, condition in bit.branch.gates if bit.branch else ():
                conditions = found.setdefault(key, {})
                number = conditions.setdefault(condition, len(conditions))
                wanted.setdefault(key, {})[place] = number
        gates: list[Gate] = []
        for (source, plain), conditions in found.items():
            of_bit = np.array([len(conditions) + (bit.branch is None) for bit in self._bits])
            places = wanted[source, plain]
            of_bit[list(places)] = list(places.values())
            gates.append((PlainGate if plain else Gate)(source, list(conditions), of_bit))
        return gates

    def _group(self, source: Source | None, first: int, last: int) -> _Group:
        mine = {
            key
            for bit in self._bits[first * WORD : last * WORD]
            for key, _ in (bit.branch.gates if bit.branch else ())
        }
        gates = [g for g in self._gates if (g.source, isinstance(g, PlainGate)) in mine]
        plain = (g for g in gates if isinstance(g, PlainGate) and g.source == source)
        reached_by = next(plain, None)
        real = np.array([bit.branch is not None for bit in self._bits[first * WORD : last * WORD]])
        return _Group(
            words=np.arange(first, last),
            bits=np.packbits(real, bitorder="little").view("<u8"),
            reached_by=reached_by,
            reached=None if reached_by is None else reached_by.words(first, last),
            gates=[gate for gate in gates if gate is not reached_by],
        )

    def _number_rests(self) -> Numbers:
        """The condition left to evaluate per bit, each distinct condition once."""
        numbers: dict[Condition, int] = {}
        places = [
            numbers.setdefault(bit.branch.rest, len(numbers))
            if bit.branch and bit.branch.rest
            else -1
            for bit in self._bits
        ]
        self._rests = list(numbers)
        return np.array(places, np.int64)

    # -- matching ------------------------------------------------------------------------

    def _check_rests(self, rows: Rows, row: Numbers, bit: Numbers) -> tuple[Numbers, Numbers]:
        """Drop the pairs whose branch has a rest that is not TRUE for the row."""
        rest = self._rest_of[bit]
        keep = rest < 0
        order = np.argsort(rest, kind="stable")
        order = order[np.count_nonzero(keep) :]
        edges = np.searchsorted(rest[order], np.arange(len(self._rests) + 1))
        for number, condition in enumerate(self._rests):
            mine = order[edges[number] : edges[number + 1]]
            if len(mine):
                where, which = np.unique(row[mine], return_inverse=True)
                keep[mine] = _true(condition, rows, where)[which]
        return row[keep], bit[keep]


@lru_cache(maxsize=_SETS_KEPT)
def _compiled(filters: tuple[tuple[str, Filter], ...]) -> ManyFilters:
    """Compiles the filters once per worker process, which gets them with every task."""
    return ManyFilters(dict(filters))


def _reach(branch: Branch, crowd: Counter[Key]) -> Key | None:
    """The equality that finds the branch; if there are several, the least crowded one.

    Crowds count words, not branches: branches under one value are adjacent and cost as one.
    """
    parts: Iterable[Condition] = [condition for (_, plain), condition in branch.gates if plain]
    flat = [c for part in parts for c in (part.operands if isinstance(part, And) else (part,))]
    access = choose_access(And(tuple(flat)), lambda key: crowd[key] // WORD)
    if access is None or not access.keys:
        return None
    crowd.update(access.keys)
    return access.keys[0]


def _standing(group: _Group, classes: Mapping[int, Numbers], rows: int) -> tuple[Numbers, Numbers]:
    """The rows and bits of the group for which every gate leaves the bit set."""
    if group.reached_by is None or group.reached is None:
        row = np.repeat(np.arange(rows), len(group.words))
        word, bits = np.tile(group.words, rows), np.tile(group.bits, rows)
    else:
        row, word, bits = _reached(group.reached, classes[id(group.reached_by)])
    for gate in group.gates:
        lines = gate.lines
        places = classes[id(gate)].take(row) * lines.shape[1] + word
        bits = bits & lines.ravel().take(places)
        left = np.flatnonzero(bits)
        row, word, bits = row.take(left), word.take(left), bits.take(left)
    flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
    places = np.flatnonzero(flags)
    which = places // WORD
    return row.take(which), word.take(which) * WORD + places % WORD


def _reached(
    reached: tuple[Numbers, Numbers, Numbers], classes: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Rows, words and bits that the class of each row leaves set."""
    starts, words, bits = reached
    first = starts[classes]
    counts = starts[classes + 1] - first
    row = np.repeat(np.arange(len(classes)), counts)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    return row, words.take(place), bits.take(place)


def _true(condition: Condition, rows: Rows, where: Numbers) -> Numbers:
    """Whether ``condition`` is TRUE in each of the rows ``where``."""
    values = {source: rows.at(source, where) for source in sources(condition)}
    columns = Columns.holding(values, len(where))
    verdict = pc.fill_null(to_arrow(condition, columns), False)
    found: Numbers = verdict.to_numpy(zero_copy_only=False)
    return found
