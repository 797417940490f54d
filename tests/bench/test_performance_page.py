"""The tables of README.md and docs/performance.md are those of the newest results."""

from __future__ import annotations

import pytest

from bench.performance_page import pages


@pytest.mark.parametrize("page", ["README.md", "performance.md"])
def test_the_tables_are_current(page: str) -> None:
    """``make figures`` rewrites them."""
    ((path, expected),) = [item for item in pages().items() if item[0].name == page]
    assert path.read_text() == expected
