"""``Filter``: a checked filter text with its tree and its predicate, and ``parse``.

A bad text is refused here with its position; nothing else happens (E1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

from penstock.errors import BadFilter
from penstock.filters.access import choose_access, split_by_topic
from penstock.filters.parse import parse_tree
from penstock.filters.to_python import Predicate, to_python
from penstock.filters.tree import Condition, walk
from penstock.model.limits import DEFAULT_PRIORITY
from penstock.model.message import Message, MessageId, Offset

__all__ = ["PARSE_CACHE_SIZE", "Filter", "Selection", "parse", "topic_test"]

#: Parsing takes about 0.1 ms, and the same few texts recur with every queue that is opened or
#: explained; 4,096 filters of ordinary size take 20 MB at worst.
PARSE_CACHE_SIZE: Final = 4_096
#: A longer text is one of few, such as a generated list; it is kept in a cache of its own.
_LONG_TEXT: Final = 4_096
_LONG_CACHE_SIZE: Final = 64
#: Nodes that are evaluated in about the time of a usual filter.
_NODES_PER_EVALUATION: Final = 16


class Selection(Protocol):
    """Selects messages: a filter, or a filter and a list of ids."""

    @property
    def matches(self) -> Predicate:
        """Whether a message is selected."""
        ...


class Filter:
    """A filter: immutable, hashable and equal by its text, and picklable."""

    __slots__ = ("indexed", "matches", "text", "tree", "weight")

    text: str
    tree: Condition
    matches: Predicate
    """Whether the filter is TRUE for a message. An attribute, because a method costs 0.05 µs."""
    indexed: bool
    """Whether most messages need not evaluate it: it requires an equality, or reads only the
    topic, which is decided once per topic."""
    weight: int
    """The time that evaluating it takes, in multiples of a usual filter's."""

    def __init__(self, text: str) -> None:
        tree = parse_tree(text)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "tree", tree)
        object.__setattr__(self, "matches", to_python(tree))
        object.__setattr__(self, "indexed", _is_indexed(tree))
        object.__setattr__(self, "weight", _weight(tree))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Filter is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Filter is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Filter) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return parse, (self.text,)


def _weight(tree: Condition) -> int:
    nodes = sum(1 for _ in walk(tree, with_items=False))
    return 1 + nodes // _NODES_PER_EVALUATION


def _is_indexed(tree: Condition) -> bool:
    # Whether a filter has a key at all does not depend on how crowded the keys are.
    return choose_access(tree, lambda _: 0) is not None or split_by_topic(tree)[1] is None


def topic_test(filter: Filter) -> Callable[[str], bool]:
    """Whether the filter may be TRUE for messages of a topic. Only False is certain."""
    condition, _ = split_by_topic(filter.tree)
    if condition is None:
        return lambda _: True
    test = to_python(condition)
    return lambda topic: test(_message_of(topic))


def _message_of(topic: str) -> Message:
    """A message with a topic and no other values."""
    return Message(MessageId(0), Offset(0), topic, DEFAULT_PRIORITY, 0, 0, None, 0, 0)


def parse(text: str) -> Filter:
    """Return the filter of ``text``, or raise :class:`BadFilter` with the position."""
    if not isinstance(text, str):
        raise BadFilter(f"A filter is a string, not {type(text).__name__}.", position=None)
    return _parse(text) if len(text) <= _LONG_TEXT else _parse_long(text)


_parse = lru_cache(maxsize=PARSE_CACHE_SIZE)(Filter)
_parse_long = lru_cache(maxsize=_LONG_CACHE_SIZE)(Filter)
