from __future__ import annotations

import pytest

from penstock.filters import FilterIndex, parse
from penstock.filters.access import Access, choose_access
from penstock.filters.index import MAX_TOPIC_PLANS
from penstock.filters.to_python import Predicate
from penstock.filters.tree import Boolean, Field, Header, Truth
from penstock.model.message import Message
from penstock.testing.laws import law


def _index(**filters: str) -> FilterIndex[str]:
    index: FilterIndex[str] = FilterIndex()
    for name, text in filters.items():
        index.add(name, parse(text), name.upper())
    return index


def test_values_come_in_the_order_of_names(message) -> None:
    index = _index(c="TRUE", a="topic = 'orders'", b="x = 1", d="priority > 3")
    assert index.match(message(x=1)) == ["A", "B", "C", "D"]


def test_add_remove_replace(message) -> None:
    index = _index(a="topic = 'orders'", b="x = 1 OR y = 1", c="size > 5")
    assert index.match(message(x=1, y=1)) == ["A", "B", "C"]
    assert index.remove("a") == "A"
    index.replace("b", parse("x = 2"), "B2")
    index.replace("c", parse("topic = 'orders' AND x = 2"), "C2")
    assert index.match(message(x=1, y=1)) == []
    assert index.match(message(x=2)) == ["B2", "C2"]
    assert (len(index), "a" in index, list(index)) == (2, False, ["b", "c"])


def test_names_are_unique() -> None:
    index = _index(a="TRUE")
    with pytest.raises(KeyError):
        index.add("a", parse("FALSE"), "again")
    with pytest.raises(KeyError):
        index.remove("b")
    with pytest.raises(KeyError):
        index.replace("b", parse("TRUE"), "B")


@law("R1")
@pytest.mark.parametrize(
    "text, value, hit",
    [
        ("x = 1", 1.0, True),
        ("x = 1.0", 1, True),
        ("x = 1", True, False),
        ("x = TRUE", 1, False),
        ("x = TRUE", True, True),
        ("x", True, True),
        ("x = FALSE", 0, False),
        ("x = 0", -0.0, True),
        ("x = '1'", 1, False),
        ("x = 9007199254740993", 9007199254740992.0, False),
        ("x IN (1, NULL, 'a', 1.0)", "a", True),
        ("x = 0", float("nan"), False),
    ],
)
def test_lookup_is_equality(text: str, value, hit: bool, message) -> None:
    assert _index(a=text).match(message(x=value)) == ["A"] * hit


def test_the_least_crowded_equality_is_the_key() -> None:
    tree = parse("topic = 't' AND x = 1 AND size > 5").tree
    topic, header = (Field("topic"), "t"), (Header("x"), 1)
    crowded = choose_access(tree, lambda key: 5 if key == topic else 0)
    empty = choose_access(tree, lambda key: 0)
    assert empty is not None
    assert crowded is not None
    assert (empty.keys, crowded.keys) == ((topic,), (header,))


def test_an_equality_alone_leaves_nothing_to_evaluate() -> None:
    access = choose_access(parse("topic = 't' OR x IN (1, 2)").tree, lambda key: 0)
    assert access == Access(((Field("topic"), "t"), (Header("x"), 1), (Header("x"), 2)))


def test_a_word_pattern_without_wildcards_is_an_equality() -> None:
    tree = parse("matches_words(topic, 'orders.eu')").tree
    assert choose_access(tree, lambda _: 0) == Access(((Field("topic"), "orders.eu"),))
    assert choose_access(parse("matches_words(x, 'orders.*')").tree, lambda _: 0) is None
    assert parse("matches_words(topic, 'orders.*')").indexed


def test_a_filter_that_is_never_true_has_no_key() -> None:
    assert choose_access(Truth(Boolean(False)), lambda key: 0) == Access(())


def test_plans_follow_changes_and_are_bounded(message) -> None:
    index = _index(a="topic LIKE 'or%'", b="topic LIKE 'or%' AND x = 1 AND size > 1")
    assert index.match(message(x=1)) == ["A", "B"]
    index.remove("a")
    assert index.match(message(x=1)) == ["B"]
    index.add("c", parse("topic LIKE '%rs' AND size < 5000"), "C")
    for n in range(MAX_TOPIC_PLANS + 10):
        index.match(message(f"t{n}"))
    assert len(index._plans) <= MAX_TOPIC_PLANS
    assert index.match(message(x=1)) == ["B", "C"]


def test_only_candidates_are_evaluated(message) -> None:
    """Routing costs what can match, not what exists: count the predicates that run."""
    index: FilterIndex[int] = FilterIndex()
    for n in range(300):
        index.add(f"q{n:03}", parse(f"topic = 't{n // 3}' AND size >= {n % 3}"), n)
    ran: list[str] = []

    def spy(name: str, test: Predicate) -> Predicate:
        def counted(row: Message) -> bool:
            ran.append(name)
            return test(row)

        return counted

    for entry in index._entries.values():
        assert entry.rest is not None
        entry.rest = spy(entry.name, entry.rest)
    assert index.match(message("t7")) == [21, 22, 23]
    assert ran == ["q021", "q022", "q023"]
