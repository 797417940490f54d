"""The golden cases, through every compiler (R1); refused texts, at their position (E1)."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
import yaml

from penstock.errors import BadFilter
from penstock.filters import explain, parse
from penstock.filters.parse import parse_tree
from penstock.filters.to_arrow import Columns, batch_of, to_arrow
from penstock.filters.to_arrow.many import ManyFilters
from penstock.filters.to_python import to_python
from penstock.filters.to_text import to_text
from penstock.filters.tree import Not
from penstock.model.message import Message

GROUPS: dict[str, list[dict[str, Any]]] = {
    path.name.removesuffix(".yaml"): yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((files("penstock.filters") / "cases").iterdir(), key=lambda p: p.name)
    if path.name.endswith(".yaml")
}
DEFAULTS = {
    "id": 1,
    "offset": 1,
    "topic": "orders",
    "priority": 4,
    "published_at": 1_700_000_000_000,
    "deliver_at": 1_700_000_000_000,
    "expires_at": None,
    "size": 100,
    "checksum": 0,
}
KEYS = [{"filter", "expect"}, {"filter", "position"}]


def _message(case: dict[str, Any]) -> Message:
    return Message(**DEFAULTS | case.get("message", {}), headers=case.get("headers", {}))


def _of(wanted: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{group}-{n}-{case['filter']}")
        for group, cases in GROUPS.items()
        for n, case in enumerate(cases)
        if wanted in case
    ]


def test_cases_are_well_formed() -> None:
    cases = [case for group in GROUPS.values() for case in group]
    assert len(cases) >= 120
    for case in cases:
        assert case.keys() - {"message", "headers"} in KEYS


@pytest.mark.parametrize("case", _of("expect"))
def test_python(case: dict[str, Any]) -> None:
    tree, message = parse_tree(case["filter"]), _message(case)
    assert to_python(tree)(message) is (case["expect"] is True)
    assert to_python(Not(tree))(message) is (case["expect"] is False)


@pytest.mark.parametrize("case", _of("expect"))
def test_arrow(case: dict[str, Any]) -> None:
    columns = Columns(batch_of([_message(case)]))
    assert to_arrow(parse_tree(case["filter"]), columns).to_pylist() == [case["expect"]]


@pytest.mark.parametrize("case", _of("expect"))
def test_many(case: dict[str, Any]) -> None:
    texts = {"true": case["filter"], "untrue": f"NOT ({case['filter']})"}
    many = ManyFilters({name: parse(text) for name, text in texts.items()})
    found = many.match(batch_of([_message(case)])).filters.tolist()
    wanted = {True: ["true"], False: ["untrue"], None: []}[case["expect"]]
    assert [many.names[number] for number in found] == wanted


@pytest.mark.parametrize("case", _of("expect"))
def test_explain(case: dict[str, Any]) -> None:
    explanation = explain(parse(case["filter"]), _message(case))
    assert explanation.verdict is case["expect"]
    assert bool(explanation.blames) is (case["expect"] is not True)


@pytest.mark.parametrize("case", _of("expect"))
def test_canonical_text_keeps_the_tree(case: dict[str, Any]) -> None:
    tree = parse_tree(case["filter"])
    assert parse_tree(to_text(tree)) == tree


@pytest.mark.parametrize("case", _of("position"))
def test_refused(case: dict[str, Any]) -> None:
    with pytest.raises(BadFilter) as refusal:
        parse(case["filter"])
    assert refusal.value.position == case["position"], refusal.value.detail
