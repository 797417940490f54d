"""``FilterIndex``: which of many filters are TRUE for a message (R1).

Publishing calls ``match`` for every message, so its cost must depend on the filters that can
match and not on all filters. A filter that requires an equality is in a hash table under it,
and only messages with that value evaluate it, or, if the equality is the whole filter, just
match. Filters without one are the residue. Their conditions on the topic alone (``topic LIKE
'orders.%'``) are decided once per topic: a plan per topic remembers which filters are left to
evaluate. If 3 of 1,000 queues match, ``match`` takes 0.2 µs if the topic decides and
1 to 2 µs if headers do.

Not thread-safe; an engine has one writer.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Final, Generic, TypeVar

from penstock.filters.access import Access, Key, Source, choose_access, split_by_topic
from penstock.filters.filter import Filter
from penstock.filters.to_python import Predicate, to_python
from penstock.filters.tree import Condition, Field, Header
from penstock.model.limits import MAX_HEADERS
from penstock.model.message import Message

__all__ = ["MAX_TOPIC_PLANS", "FilterIndex"]

T = TypeVar("T")

#: A plan holds only references. A store with more active topics than this pays one pass over the
#: residue whenever the plans are dropped.
MAX_TOPIC_PLANS: Final = 8_192

_TOPIC: Final = Field("topic")
_NONE: Final = ()
_by_name = attrgetter("name")


class _Entry(Generic[T]):
    """One filter in the index. ``rest`` is the condition that a hit still has to evaluate."""

    __slots__ = ("filter", "gate", "keys", "name", "rest", "value", "weight")

    def __init__(self, name: str, filter: Filter, value: T, access: Access | None) -> None:
        self.name = name
        self.filter = filter
        self.value = value
        self.keys: tuple[Key, ...] | None = None if access is None else access.keys
        gate, rest = split_by_topic(filter.tree) if access is None else (None, access.rest)
        self.gate = _predicate(gate, filter)
        self.rest = _predicate(rest, filter)
        self.weight = 0 if rest is None else filter.weight


class _Plan(Generic[T]):
    """The result of a topic: the entries that match, and those to evaluate."""

    __slots__ = ("decided", "open", "values", "weight")

    def __init__(self, entries: list[_Entry[T]]) -> None:
        self.decided = [entry for entry in entries if entry.rest is None]
        self.open = [(entry.rest, entry) for entry in entries if entry.rest is not None]
        self.values = [entry.value for entry in self.decided]
        self.weight = sum(entry.weight for entry in entries)


class FilterIndex(Generic[T]):
    """Named filters, each with a value; ``match`` returns the values of those that are TRUE."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}
        self._residue: dict[str, _Entry[T]] = {}
        self._by_topic: dict[Hashable, list[_Entry[T]]] = {}
        self._by_field: dict[str, dict[Hashable, list[_Entry[T]]]] = {}
        self._by_header: dict[str, dict[Hashable, list[_Entry[T]]]] = {}
        self._plans: dict[str, _Plan[T]] = {}
        #: Entries under keys of several sources: one message may find them twice.
        self._spread: set[str] = set()
        #: The most filters ever under one key, other than a topic, with a condition left to
        #: evaluate.
        self._most_under_key = 0
        #: How much longer all filters take than as many usual ones, in evaluations.
        self._surplus = 0
        #: Sets that receive the name of every filter that is added or removed.
        self.watchers: list[set[str]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def add(self, name: str, filter: Filter, value: T) -> None:
        """Add ``filter`` as ``name``; raise :class:`KeyError` if the name is taken."""
        if name in self._entries:
            raise KeyError(name)
        entry = _Entry(name, filter, value, choose_access(filter.tree, self._crowd))
        self._entries[name] = entry
        self._surplus += max(0, entry.weight - 1)
        if entry.keys is None:
            self._residue[name] = entry
        for source, wanted in entry.keys or ():
            bucket = self._table(source).setdefault(wanted, [])
            insort(bucket, entry, key=_by_name)
            if entry.rest is not None and source != _TOPIC:
                self._most_under_key = max(self._most_under_key, len(bucket))
        if len({source for source, _ in entry.keys or ()}) > 1:
            self._spread.add(name)
        self._forget_plans(entry)
        for names in self.watchers:
            names.add(name)

    def remove(self, name: str) -> T:
        """Remove the filter ``name`` and return its value; raise :class:`KeyError` if absent."""
        entry = self._entries.pop(name)
        self._surplus -= max(0, entry.weight - 1)
        self._residue.pop(name, None)
        self._spread.discard(name)
        for key in entry.keys or ():
            self._drop(key, entry)
        self._forget_plans(entry)
        for names in self.watchers:
            names.add(name)
        return entry.value

    def replace(self, name: str, filter: Filter, value: T) -> None:
        """Replace the filter ``name`` with ``filter`` and ``value``."""
        self.remove(name)
        self.add(name, filter, value)

    def match(self, message: Message) -> Sequence[T]:
        """Return the values whose filter is TRUE for ``message``, ordered by filter name.

        If the topic alone decides, every call returns the same sequence.
        """
        plan = self._plans.get(message.topic)
        if plan is None:
            plan = self._plan(message)
        headers = message.headers
        by_header = self._by_header
        if not (plan.open or self._by_field or (by_header and headers)):
            return plan.values
        hits = plan.decided.copy()
        groups = 1 if hits else 0
        if plan.open:
            hits += [entry for test, entry in plan.open if test(message)]
            groups += 1
        # Loops and no calls below: this is the hottest function of the product.
        for field, table in self._by_field.items():
            bucket = table.get(getattr(message, field))
            if bucket is not None:
                groups += 1
                hits += [e for e in bucket if e.rest is None or e.rest(message)]
        for name in by_header if len(by_header) < len(headers) else headers:
            if name in by_header and name in headers:
                value = headers[name]
                # The inlined access.lookup_key.
                key = (value,) if value is True or value is False else value
                bucket = by_header[name].get(key)
                if bucket is not None:
                    groups += 1
                    hits += [e for e in bucket if e.rest is None or e.rest(message)]
        # Each group is sorted, so a single one needs no sorting.
        if groups > 1:
            if self._spread:
                hits = list(dict.fromkeys(hits))
            hits.sort(key=_by_name)
        return [entry.value for entry in hits]

    def match_one(self, name: str, message: Message) -> T | None:
        """The value of the filter ``name``; None if it is not TRUE, or not in the index."""
        entry = self._entries.get(name)
        return entry.value if entry is not None and entry.filter.matches(message) else None

    def weight(self, name: str) -> int:
        """The evaluations that ``match_one`` counts as; 0 if the filter is not in the index."""
        entry = self._entries.get(name)
        return 0 if entry is None else entry.filter.weight

    def evaluations(self, topic: str) -> int:
        """The most evaluations of ``match`` for a message of the topic; a long filter is several.

        Sometimes too high: a key that was crowded once still counts as crowded, and every long
        filter counts as one that the message reaches.
        """
        plan = self._plans.get(topic)
        if plan is None:
            left = len(self._residue) + len(self._by_topic.get(topic, _NONE)) + self._surplus
        else:
            left = plan.weight
        if not self._most_under_key:
            return left
        sources = len(self._by_field) + min(len(self._by_header), MAX_HEADERS)
        return left + sources * self._most_under_key + self._surplus

    def decided(self, topic: str) -> Sequence[T] | None:
        """The result of ``match`` if it is the same for every message of the topic.

        None if it is not, or not known yet: ``match`` has not seen the topic since the index
        changed.
        """
        plan = self._plans.get(topic)
        if plan is None or plan.open or self._by_field or self._by_header:
            return None
        return plan.values

    def _plan(self, message: Message) -> _Plan[T]:
        entries = list(self._by_topic.get(message.topic, _NONE))
        entries += [
            entry for entry in self._residue.values() if entry.gate is None or entry.gate(message)
        ]
        if len(self._plans) >= MAX_TOPIC_PLANS:
            self._plans.clear()
        plan = self._plans[message.topic] = _Plan(sorted(entries, key=_by_name))
        return plan

    def _forget_plans(self, entry: _Entry[T]) -> None:
        if entry.keys is None:
            self._plans.clear()
        for source, topic in entry.keys or ():
            if source == _TOPIC and isinstance(topic, str):
                self._plans.pop(topic, None)

    def _table(self, source: Source) -> dict[Hashable, list[_Entry[T]]]:
        if source == _TOPIC:
            return self._by_topic
        tables = self._by_header if isinstance(source, Header) else self._by_field
        return tables.setdefault(source.name, {})

    def _crowd(self, key: Key) -> int:
        source, value = key
        if source == _TOPIC:
            return len(self._by_topic.get(value, _NONE))
        tables = self._by_header if isinstance(source, Header) else self._by_field
        return len(tables.get(source.name, {}).get(value, _NONE))

    def _drop(self, key: Key, entry: _Entry[T]) -> None:
        """Remove ``entry`` from under ``key``, and tables that become empty."""
        source, value = key
        table = self._table(source)
        table[value].remove(entry)
        if not table[value]:
            del table[value]
        if not table and source != _TOPIC:
            tables = self._by_header if isinstance(source, Header) else self._by_field
            del tables[source.name]


def _predicate(condition: Condition | None, whole: Filter) -> Predicate | None:
    """The predicate of a condition of the filter ``whole``, which is compiled already."""
    if condition is None:
        return None
    return whole.matches if condition == whole.tree else to_python(condition)
