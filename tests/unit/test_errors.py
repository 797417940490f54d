"""The tree of errors: what it promises in its docstring is what it is."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from penstock import errors
from penstock.errors import (
    BadFilter,
    BadPolicy,
    BadSchema,
    PenstockError,
    QueueFull,
    SchemaViolation,
)
from penstock.testing.laws import law

CLASSES = [getattr(errors, name) for name in errors.__all__]
LAW = re.compile(r"[A-Z]\d")


class Drawn(NamedTuple):
    """One line of the tree in the docstring."""

    name: str
    parent: str | None
    status: int | None


def _drawn() -> list[Drawn]:
    """The tree of the docstring: four columns a level."""
    assert errors.__doc__ is not None
    out: list[Drawn] = []
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.fullmatch(r" {4}([│├└─ ]*)([A-Z][A-Za-z]+)(?: +(\d{3}).*)?", line)
        if found is None:
            continue
        branch, name, status = found.groups()
        depth = len(branch) // 4
        del path[depth:]
        out.append(Drawn(name, path[-1] if path else None, int(status) if status else None))
        path.append(name)
    return out


def _make(kind: type[PenstockError]) -> PenstockError:
    if issubclass(kind, QueueFull):
        return kind("The detail.", queue="orders", limit=3, retry_after_ms=1000)
    return kind("The detail.", field="name", limit=7)


def test_the_tree_is_drawn_as_it_is() -> None:
    real = {
        kind.__name__: None if kind is PenstockError else kind.__bases__[0].__name__
        for kind in CLASSES
    }
    assert {item.name: item.parent for item in _drawn()} == real


@pytest.mark.parametrize("drawn", _drawn(), ids=lambda item: item.name)
def test_statuses_are_drawn_as_they_are(drawn: Drawn) -> None:
    if drawn.status is not None:
        assert getattr(errors, drawn.name).status == drawn.status
    else:
        assert drawn.name == "PenstockError"


def test_every_class_is_exported() -> None:
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, PenstockError)
    }
    assert kinds == set(errors.__all__)


@law("E1")
@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_says_what_to_do(kind: type[PenstockError]) -> None:
    for own in ("title", "advice") if kind is not PenstockError else ():
        assert own in vars(kind), f"{kind.__name__} has the {own} of its parent"
    assert kind.title
    assert not kind.title.endswith(".")
    assert kind.advice.endswith(".")
    assert 400 <= kind.status <= 599
    assert LAW.fullmatch(kind.law)
    assert kind.__doc__


@pytest.mark.parametrize("kind", CLASSES)
def test_what_is_shown_is_the_detail_and_the_advice(kind: type[PenstockError]) -> None:
    error = _make(kind)
    assert str(error) == f"The detail. {kind.advice}"
    assert error.detail == "The detail."
    assert error.args == ("The detail.",)


def test_titles_are_unique() -> None:
    titles = [kind.title for kind in CLASSES]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not QueueFull])
def test_the_field_and_the_limit_to_blame(kind: type[PenstockError]) -> None:
    error = _make(kind)
    assert (error.field, error.limit) == ("name", 7)


def test_a_filter_error_points_at_the_place() -> None:
    error = BadFilter("No such function.", position=12)
    assert (error.position, error.field, error.limit) == (12, "filter", None)


def test_a_schema_violation_blames_the_payload_and_says_which() -> None:
    error = SchemaViolation("Not a number.", index=3)
    assert (error.field, error.index, error.status, error.retryable) == ("payload", 3, 422, False)
    assert SchemaViolation("Not a number.").index is None


def test_a_bad_schema_is_a_bad_policy() -> None:
    error = BadSchema("Not JSON.")
    assert isinstance(error, BadPolicy)
    assert (error.field, error.limit, error.status) == ("schema", None, 400)


def test_a_full_queue_says_which_and_for_how_long() -> None:
    error = QueueFull("Full.", queue="orders", limit=10, retry_after_ms=1000)
    assert (error.queue, error.limit, error.retry_after_ms) == ("orders", 10, 1000)
    assert (error.field, error.status, error.retryable) == ("max_depth", 429, True)


def test_what_may_be_tried_again() -> None:
    assert {kind.__name__ for kind in CLASSES if kind.retryable} == {
        "Busy",
        "CommitFailed",
        "NotWriter",
        "QueueChanged",
        "QueueFull",
        "ResultTimeout",
        "SlowRequest",
        "StoreBusy",
        "StoreFull",
        "StoreLocked",
        "TooManyRequests",
        "TopicChanged",
        "Unreachable",
    }
