"""``BatchRoutes``: the matches of an index for the messages of a batch, computed in slices (R1).

A large batch through many filters takes seconds, which would block the event loop. So the
filters are evaluated in slices before the batch is stored. The index may change between two
slices: ``BatchRoutes`` notes which filters were added, removed or replaced, and evaluates those
again. After ``finish``, until the index changes, the answers are exactly those of ``match``.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Final, Generic, Protocol, Self, TypeVar

from penstock.filters.index import FilterIndex
from penstock.model.message import Message

__all__ = ["INLINE_EVALUATIONS", "BatchRoutes"]

#: This many evaluations take about three milliseconds, so they need no slices.
INLINE_EVALUATIONS: Final = 10_000

#: Answers that are kept, counted in values: 8 MiB. What is beyond is asked of the index again.
_KEPT: Final = 1_000_000

_by_name = attrgetter("name")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


class BatchRoutes(Generic[T]):
    """The matches of one index for one batch. A context manager: the index tracks its users.

    The values of the index have the names of their filters.
    """

    def __init__(self, index: FilterIndex[T], messages: Sequence[Message]) -> None:
        self.messages = messages
        self._index = index
        #: None: not kept.
        self._matches: list[Sequence[T] | None] = []
        self._changed: set[str] = set()

    def __enter__(self) -> Self:
        self._index.watchers.append(self._changed)
        return self

    def __exit__(self, *_: object) -> None:
        # By identity: two sets of names may be equal.
        watchers = self._index.watchers
        watchers[:] = [names for names in watchers if names is not self._changed]

    def steps(self) -> Iterator[None]:
        """Evaluate one message per step; the caller may pause between two steps."""
        match = self._index.match
        append = self._matches.append
        budget = _KEPT
        last: Sequence[T] = ()
        for message in self.messages:
            found = match(message)
            if found is not last:
                # The index gives the very same sequence where the topic decides.
                budget -= len(found)
                last = found
            append(found if budget >= 0 else None)
            yield

    def catch_up_steps(self) -> Iterator[None]:
        """Evaluate the filters that changed meanwhile, one message per step."""
        names = frozenset(self._changed)
        self._changed.clear()
        for position in range(len(self.messages)):
            self._evaluate_again(position, names)
            yield

    def finish(self) -> None:
        """Evaluate the filters changed since the last step; then the answers are current."""
        if self._changed:
            for position in range(len(self.messages)):
                self._evaluate_again(position, self._changed)
            self._changed.clear()

    @property
    def is_quick(self) -> bool:
        """Whether so few filters have changed that ``finish`` takes negligible time."""
        evaluations = sum(max(1, self._index.weight(name)) for name in self._changed)
        return evaluations * len(self.messages) <= INLINE_EVALUATIONS

    def match(self, position: int) -> Sequence[T]:
        """The matches of the message at this position of the batch."""
        found = self._matches[position]
        return self._index.match(self.messages[position]) if found is None else found

    def _evaluate_again(self, position: int, names: Collection[str]) -> None:
        message, before = self.messages[position], self._matches[position]
        if before is None:
            return
        found = [value for value in before if value.name not in names]
        for name in names:
            value = self._index.match_one(name, message)
            if value is not None:
                insort(found, value, key=_by_name)
        self._matches[position] = found
