"""Servers for a test: real processes, each on a free port and a folder of its own, all killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.service.serving import Serve


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts ``penstock serve`` as often as it is called; nothing outlives the test."""
    starting = Serve(tmp_path)
    try:
        yield starting
    finally:
        starting.end()
