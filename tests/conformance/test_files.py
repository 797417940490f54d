"""The key-value engine over a journal and message files."""

from penstock.testing.conformance import *  # noqa: F403
from penstock.testing.conformance import engine_factory

open_engine = engine_factory("files://{path}")
