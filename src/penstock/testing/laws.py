"""Marks a test with the laws it checks: ``@law("S1")``, or ``@law("P1", "S2")``.

``docs/semantics.md`` has the laws, and a table of their tests that is generated from these marks.
"""

from __future__ import annotations

import pytest

__all__ = ["law"]


def law(*ids: str) -> pytest.MarkDecorator:
    """Mark a test with the ids of the laws that it checks."""
    return pytest.mark.law(*ids)
