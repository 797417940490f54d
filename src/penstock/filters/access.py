"""How an index finds a filter: by equalities. At least one must hold for the filter to be TRUE.

A pure decision over the tree. A filter is TRUE only if, for one of its keys, the source
equals the value; after such a hit only ``rest`` is left to check. Hash lookup and ``=`` must
agree (R1): numbers hash and compare alike across int and float, NaN finds nothing, and
:func:`lookup_key` wraps bools, because in Python ``True`` equals 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias

from msgspec import Struct

from penstock.filters import tree as t
from penstock.filters.words import exact_words
from penstock.model.message import HeaderValue

__all__ = ["Access", "Key", "Source", "choose_access", "lookup_key", "split_by_topic"]

Source: TypeAlias = t.Field | t.Header
Key: TypeAlias = tuple[Source, Hashable]

_TOPIC = t.Field("topic")


class Access(Struct, frozen=True):
    """The keys of a filter, and the condition left after a hit; ``None`` if there is none."""

    keys: tuple[Key, ...]
    rest: t.Condition | None = None


def lookup_key(value: HeaderValue) -> Hashable:
    """Return the key of ``value`` in a hash table."""
    return (value,) if value is True or value is False else value


def choose_access(tree: t.Condition, crowd: Callable[[Key], int]) -> Access | None:
    """Return the best access to ``tree``, or ``None`` if it requires no equality.

    ``crowd`` returns the number of filters under a key: the least crowded key wins. Ties go
    to the topic, then system fields, then headers.
    """
    match tree:
        case t.And(operands):
            return _best_conjunct(operands, crowd)
        case t.Or(operands):
            return _every_branch(tree, operands, crowd)
        case t.Compare("=", t.Field() | t.Header() as source, constant) | t.Compare(
            "=", constant, t.Field() | t.Header() as source
        ) if isinstance(constant, t.Text | t.Integer | t.Float | t.Boolean):
            return Access(_keys(source, (constant,)))
        case t.In(t.Field() | t.Header() as source, items):
            return Access(_keys(source, items))
        case t.Truth(t.Header() as source):
            return Access(_keys(source, (t.Boolean(True),)))
        case t.Truth(
            t.Call("matches_words", (t.Field() | t.Header() as source, t.Text(pattern) as name))
        ) if exact_words(pattern):
            return Access(_keys(source, (name,)))
        case t.Truth(t.Boolean(False) | t.Null()):
            return Access(())
        case _:
            return None


def split_by_topic(tree: t.Condition) -> tuple[t.Condition | None, t.Condition | None]:
    """Split the conjuncts of ``tree`` into those that read nothing but the topic, and the rest."""
    conjuncts = tree.operands if isinstance(tree, t.And) else (tree,)
    return (
        _conjunction(part for part in conjuncts if _reads_topic_only(part)),
        _conjunction(part for part in conjuncts if not _reads_topic_only(part)),
    )


def _keys(source: Source, items: Iterable[t.Constant]) -> tuple[Key, ...]:
    values = (lookup_key(item.value) for item in items if not isinstance(item, t.Null))
    return tuple((source, value) for value in dict.fromkeys(values))


def _best_conjunct(operands: tuple[t.Condition, ...], crowd: Callable[[Key], int]) -> Access | None:
    found = [
        (access, position)
        for position, operand in enumerate(operands)
        if (access := choose_access(operand, crowd)) is not None
    ]
    if not found:
        return None
    best, chosen = min(found, key=lambda pair: _cost(pair[0], crowd))
    others = (operand for n, operand in enumerate(operands) if n != chosen)
    return Access(best.keys, _conjunction((*others, *_conjuncts(best.rest))))


def _every_branch(
    tree: t.Or, operands: tuple[t.Condition, ...], crowd: Callable[[Key], int]
) -> Access | None:
    branches = [choose_access(operand, crowd) for operand in operands]
    keys: dict[Key, None] = {}
    decided = True
    for branch in branches:
        if branch is None:
            return None
        keys.update(dict.fromkeys(branch.keys))
        decided = decided and branch.rest is None
    return Access(tuple(keys), None if decided else tree)


def _cost(access: Access, crowd: Callable[[Key], int]) -> tuple[int, int, int]:
    ranks = [_rank(source) for source, _ in access.keys]
    return max(map(crowd, access.keys), default=0), max(ranks, default=0), len(ranks)


def _rank(source: Source) -> int:
    return 2 if isinstance(source, t.Header) else int(source != _TOPIC)


def _conjuncts(condition: t.Condition | None) -> tuple[t.Condition, ...]:
    if condition is None:
        return ()
    return condition.operands if isinstance(condition, t.And) else (condition,)


def _conjunction(conditions: Iterable[t.Condition]) -> t.Condition | None:
    parts = tuple(conditions)
    if len(parts) > 1:
        return t.And(parts)
    return parts[0] if parts else None


def _reads_topic_only(condition: t.Condition) -> bool:
    nodes = (node for node, _ in t.walk(condition, with_items=False))
    return all(node == _TOPIC for node in nodes if isinstance(node, Source))
