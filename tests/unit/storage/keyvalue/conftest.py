"""A store in memory, the stage over it, and a commit that is one call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.stage import Stage


@pytest.fixture
def adapter() -> MemoryAdapter:
    return MemoryAdapter()


@pytest.fixture
def stage(adapter: MemoryAdapter) -> Stage:
    return Stage(adapter)


@pytest.fixture
def commit(adapter: MemoryAdapter, stage: Stage) -> Callable[[], int]:
    """Commit what is staged; returns the number of the commit."""

    def run() -> int:
        number = stage.number
        batch = stage.take()
        adapter.write(batch.writes, batch.removed, batch.sync)
        stage.committed()
        return number

    return run
