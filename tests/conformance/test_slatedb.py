"""The key-value engine over SlateDB, in a directory."""

from penstock.testing.conformance import *  # noqa: F403
from penstock.testing.conformance import engine_factory

open_engine = engine_factory("slatedb+file://{path}")
