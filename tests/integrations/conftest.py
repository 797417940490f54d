"""One server for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.serving import Serve, Served

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """``penstock serve`` on a store in memory."""
    starting = Serve(tmp_path_factory.mktemp("server"))
    try:
        yield starting(store="memory://")
    finally:
        starting.end()
