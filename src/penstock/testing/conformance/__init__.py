"""The compliance suite: what every engine has to do, one file a verb.

A test names a capability, never an engine; a test that needs one that is not there skips
with the reason. ``store`` says how a test file for an engine looks. Laws are named by the
tests that hold them, as in ``test_s1_…``; P1 and X1 need a machine that fails and are held
by crash tests.
"""

from __future__ import annotations

import pytest

_MODULES = (
    "claim",
    "dead_letter",
    "keyed",
    "publish",
    "settle",
    "store",
)
# Before the imports below: asserts are rewritten when a module is first imported.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES))

from penstock.testing.conformance.claim import *  # noqa: E402, F403
from penstock.testing.conformance.dead_letter import *  # noqa: E402, F403
from penstock.testing.conformance.keyed import *  # noqa: E402, F403
from penstock.testing.conformance.publish import *  # noqa: E402, F403
from penstock.testing.conformance.settle import *  # noqa: E402, F403
from penstock.testing.conformance.harness import engine_factory, store  # noqa: E402
