"""Random programs on every engine, compared with the oracle step by step."""

from __future__ import annotations

import os
import unittest
from collections.abc import Awaitable
from pathlib import Path

import pytest
from hypothesis import settings

from penstock.model.queue import Start
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.sql import compaction
from penstock.testing.opening import Opener
from tests.databases import store_opener
from tests.properties.machine import CI, machine_for
from tests.properties.random_steps import POLICIES

#: Seconds. A run takes one minute; a failing one needs five more to shrink its program.
SHRINKING_S = 600
#: After every step the store is looked at from all sides, with some two hundred statements where
#: it is a database: fewer and shorter programs, also in a minute or so.
SQL = settings(CI, max_examples=10, stateful_step_count=40)
#: In a suite that has to end soon; the oracle's own tests and longer runs do the rest.
LOCAL = settings(CI, max_examples=40)


@pytest.fixture(autouse=True)
def added_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are short: have every sweep add numbers up, however few they are."""
    monkeypatch.setattr(compaction, "_MANY", 1)


def case_for(
    store: str | Opener, programs: settings = LOCAL, *, with_copies: bool = True
) -> type[unittest.TestCase]:
    case = machine_for(store, with_copies=with_copies).TestCase
    # The same programs every time where a change is judged, other ones wherever it is made.
    case.settings = settings(programs, derandomize="CI" in os.environ)
    marks = [pytest.mark.slow, pytest.mark.timeout(SHRINKING_S)]
    setattr(case, "pytestmark", marks)  # noqa: B010  (not in its type)
    return case


def in_slices(options: EngineOptions, path: Path) -> Awaitable[Engine]:
    """A store whose bulk verbs do two things at a time."""
    del path
    return KeyValueEngine.open(MemoryAdapter(), options, slice_size=2)


def test_a_program_may_read_an_event() -> None:
    """Its payload names a message by an id, which is another one on each side."""
    program = machine_for("memory://")()
    program.begin([{"color": "red"}])
    program._put("acme", "late", POLICIES["late"], Start())
    program.publish("acme", "orders", [{"amount": 9.5}])
    program.claim("acme", "late", "c1", 1, None)
    program.settle([(0, "ack", None)], None, "orders")
    program.read("acme", "late", 2)
    program.teardown()


# The engine is that of TestRocksdb, and test_adapters.py compares the two adapters.
TestMemory = case_for("memory://", LOCAL)
TestInSlices = case_for(in_slices, settings(CI, max_examples=20), with_copies=False)
TestFiles = case_for("files://{path}", settings(CI, max_examples=20), with_copies=False)
TestRocksdb = case_for("rocksdb://{path}")
TestPostgresql = case_for(store_opener("postgresql"), SQL)
TestMysql = case_for(store_opener("mysql"), SQL)
