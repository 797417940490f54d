"""Random programs on every engine, compared with the oracle step by step."""

from __future__ import annotations

import os
import unittest

import pytest
from hypothesis import settings

from penstock.testing.machine import CI, machine_for

#: Seconds. A run takes one minute; a failing one needs five more to shrink its program.
SHRINKING_S = 600


def case_for(url: str) -> type[unittest.TestCase]:
    case = machine_for(url).TestCase
    # The same programs every time where a change is judged, other ones wherever it is made.
    case.settings = settings(CI, derandomize="CI" in os.environ)
    setattr(case, "pytestmark", [pytest.mark.timeout(SHRINKING_S)])  # noqa: B010  (not in its type)
    return case


TestMemory = case_for("memory://")
TestRocksdb = case_for("rocksdb://{path}")
