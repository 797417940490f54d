"""The key-value engine over SlateDB, in a directory."""

import pytest

from penstock.storage.keyvalue.adapters.slatedb.adapter import SlateDBAdapter
from penstock.testing.conformance import *  # noqa: F403
from penstock.testing.conformance import engine_factory

open_engine = engine_factory("slatedb+file://{path}")


@pytest.fixture(autouse=True)
def large_removals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most ranges that are removed are large ones, whose keys are deleted later."""
    monkeypatch.setattr(SlateDBAdapter, "removed_at_once", 2)
