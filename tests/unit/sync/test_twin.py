"""The twin does not drift: it is what the generator makes of the async code."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import penstock.opening
import penstock.sync
from penstock.api import QueueApi
from penstock.client import connect
from penstock.consume.lease import Lease
from penstock.consume.lease_batch import LeaseBatch
from penstock.sync import SyncLease, SyncLeaseBatch, SyncVerbs, generate

PACKAGE = Path(str(penstock.sync.__file__)).parent


@pytest.mark.parametrize("twin", generate.TWINS, ids=lambda twin: twin.file)
def test_the_checked_in_twin_is_what_is_generated(twin: generate.Twin) -> None:
    made = generate.generate(twin)
    assert (PACKAGE / twin.file).read_text() == made, "run python src/penstock/sync/generate.py"


@pytest.mark.parametrize(
    "twin, original", [(SyncVerbs, QueueApi), (SyncLease, Lease), (SyncLeaseBatch, LeaseBatch)]
)
def test_the_twin_has_every_member_with_the_same_parameters(twin: type, original: type) -> None:
    names = {name for name in vars(original) if not name.startswith("_")} - {"result"}
    assert len(names) > 5
    for name in names:
        ours, theirs = inspect.getattr_static(twin, name), inspect.getattr_static(original, name)
        if isinstance(theirs, property):
            assert isinstance(ours, property)
        else:
            assert not inspect.iscoroutinefunction(ours)
            assert parameters(ours) == parameters(theirs), name
        assert inspect.getdoc(ours)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (penstock.sync.open, penstock.opening.open),
        (penstock.sync.connect, connect),
    ],
)
def test_opening_takes_the_same(ours: Any, theirs: Any) -> None:
    assert parameters(ours) == parameters(theirs)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [
        (item.name, item.kind, item.default)
        for item in inspect.signature(function).parameters.values()
    ]
