"""The mark that ties a test to the laws it holds: ``@law("S1")``, or ``@law("P1", "S2")``.

``docs/semantics.md`` has the laws, and a table of the tests that hold them, made from these marks.
"""

from __future__ import annotations

import pytest

__all__ = ["law"]


def law(*ids: str) -> pytest.MarkDecorator:
    """Mark a test with the ids of the laws that it holds."""
    return pytest.mark.law(*ids)
