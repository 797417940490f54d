"""BatchRoutes: whatever changes between two steps, the answers are those of ``match`` (R1)."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from penstock.filters import FilterIndex, batch_routes, parse
from penstock.filters.batch_routes import INLINE_EVALUATIONS, BatchRoutes
from penstock.model.message import HeaderValue, Message, MessageId, Offset
from penstock.testing.laws import law


class Taker(NamedTuple):
    """What stands in the index: a queue, by its name and a number of its own."""

    name: str
    number: int


def message(amount: int, topic: str = "t") -> Message:
    headers: dict[str, HeaderValue] = {"amount": amount, "color": "red" if amount % 2 else "blue"}
    return Message(
        MessageId(amount), Offset(amount), topic, 4, 0, 0, None, 0, 0, None, None, None, headers
    )


FILTERS = ("TRUE", "amount > 3", "color = 'red'", "topic = 't'", "amount < 5", "FALSE")


@law("R1")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kept", [5, 1_000_000])
def test_filters_that_change_between_steps_are_evaluated_again(
    seed: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_routes, "_KEPT", kept)
    chosen = random.Random(seed)
    index: FilterIndex[Taker] = FilterIndex()
    numbers = iter(range(10_000))

    def change() -> None:
        name = f"q{chosen.randrange(6)}"
        if name in index:
            index.remove(name)
        if chosen.random() < 0.7:
            index.add(name, parse(chosen.choice(FILTERS)), Taker(name, next(numbers)))

    for _ in range(8):
        change()
    messages = [message(amount) for amount in range(8)]
    with BatchRoutes(index, messages) as routes:
        for _ in routes.steps():
            if chosen.random() < 0.5:
                change()
        if chosen.random() < 0.5:
            for _ in routes.catch_up_steps():
                change()
        routes.finish()
        for position, one in enumerate(messages):
            assert list(routes.match(position)) == list(index.match(one))
    assert index.watchers == []


def test_only_what_changed_is_evaluated_again() -> None:
    index: FilterIndex[Taker] = FilterIndex()
    index.add("a", parse("amount > 3"), Taker("a", 0))
    with BatchRoutes(index, [message(5)]) as routes:
        list(routes.steps())
        first = routes.match(0)
        routes.finish()
        assert routes.match(0) is first


def test_many_changes_are_not_quick() -> None:
    index: FilterIndex[Taker] = FilterIndex()
    messages = [message(n) for n in range(INLINE_EVALUATIONS // 2)]
    with BatchRoutes(index, messages) as routes:
        list(routes.steps())
        for n in range(3):
            index.add(f"q{n}", parse("TRUE"), Taker(f"q{n}", n))
        quick = [routes.is_quick]
        list(routes.catch_up_steps())
        quick.append(routes.is_quick)
        assert quick == [False, True]
        assert [taker.name for taker in routes.match(0)] == ["q0", "q1", "q2"]


def test_a_long_filter_is_several_evaluations() -> None:
    index: FilterIndex[Taker] = FilterIndex()
    long = parse(" OR ".join(f"amount > {n} + x" for n in range(80)))
    index.add("long", long, Taker("long", 0))
    assert index.evaluations("t") == long.weight > 10
    index.match(message(1))
    assert index.evaluations("t") == long.weight == index.weight("long")
    index.add("keyed", parse("x = 1 AND amount > 1"), Taker("keyed", 1))
    assert index.evaluations("t") >= long.weight + 1
    with BatchRoutes(index, [message(n) for n in range(INLINE_EVALUATIONS // 2)]) as routes:
        list(routes.steps())
        index.remove("long")
        quick = [routes.is_quick]
        index.add("long", long, Taker("long", 0))
        quick.append(routes.is_quick)
    assert quick == [True, False]
    index.remove("long")
    index.remove("keyed")
    assert (index.weight("long"), index.evaluations("u")) == (0, 0)


def test_evaluations_bound_what_match_evaluates() -> None:
    index: FilterIndex[Taker] = FilterIndex()
    assert index.evaluations("t") == 0
    for n in range(3):
        index.add(f"scan{n}", parse(f"amount > {n}"), Taker(f"scan{n}", n))
    assert index.evaluations("t") == 3
    index.add("all", parse("TRUE"), Taker("all", 0))
    index.match(message(1))
    assert index.evaluations("t") == 3
    for n in range(5):
        index.add(f"key{n}", parse(f"color = 'red' AND amount > {n}"), Taker(f"key{n}", n))
    assert index.evaluations("t") == 3 + 5
