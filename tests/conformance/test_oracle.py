"""The oracle itself, which tests the suite and the oracle at once."""

from penstock.testing.conformance import *  # noqa: F403
from penstock.testing.conformance import engine_factory
from penstock.testing.model import Oracle

open_engine = engine_factory(lambda options, path: Oracle(options))
