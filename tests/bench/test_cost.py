"""The meter counts what a process and its children use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.cost import Meter, memory_bytes, process_tree

#: A child that works for 0.2 s of processor time, says so, and waits; its parent waits for it.
_CHILD = """
import sys, time
while time.process_time() < 0.2: pass
print("done", flush=True)
sys.stdin.read()
"""
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_CHILD!r}])"


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate(timeout=60)


def test_descendants_belong_to_their_root(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    meter = Meter([parent.pid], [], tmp_path)
    begin = meter.read()
    assert parent.stdout is not None
    assert parent.stdout.readline() == "done\n"
    cost = meter.cost_since(begin)
    tree = process_tree([parent.pid])
    assert parent.pid in tree
    assert len(tree) == 2
    assert os.getpid() not in tree
    assert cost.server_cpu_s > 0.1
    assert cost.client_cpu_s == 0
    assert memory_bytes([parent.pid]) > 2**20


def test_a_process_that_has_ended_costs_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    assert process_tree([ended.pid]) == set()
    assert memory_bytes([ended.pid]) == 0
