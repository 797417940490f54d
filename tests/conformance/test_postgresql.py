"""The SQL engine on PostgreSQL."""

from penstock.testing.conformance import *  # noqa: F403
from penstock.testing.conformance import engine_factory
from tests.databases import store_opener

open_engine = engine_factory(store_opener("postgresql"))
