"""Every benchmark runs, checks its messages and yields figures; so short a run measures nothing.

Those of the pipeline are in ``tests/pipeline/test_benchmarks.py``, where there is a Spark session.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import bench.bounds
import bench.crowd
import bench.heavy
import bench.hostile
import bench.hostile_doors
import bench.partitions
import bench.sqs
import bench.wide
from bench import parts
from bench.console import console
from bench.measuring import Figure
from bench.parts import Sizes

SIZES = Sizes(seconds=0.05, rounds=1, deep=2_000)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BENCH_DIR", str(tmp_path))


async def check(figures: AsyncIterator[Figure], count: int) -> None:
    found = [figure async for figure in figures]
    assert len(found) == count
    # Callers of a tiny benchmark make the server hold less than can be measured.
    assert all(figure.ratio > 0 or figure.name.startswith("memory held") for figure in found)


async def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("SEGMENTS", 2), ("WAITING", 200), ("DUE", 1_000)):
        monkeypatch.setattr(bench.bounds, name, size)
    for name, size in (("LARGEST", 2**22), ("CALLERS", 4), ("UNREAD_S", 0)):
        monkeypatch.setattr(bench.hostile, name, size)
    for name, size in (("COUNT", 20), ("QUEUES", 100), ("LARGE_COUNT", 2)):
        monkeypatch.setattr(bench.heavy, name, size)
    monkeypatch.setattr(bench.hostile_doors, "LARGEST", 2**22)
    await check(parts.bounds(SIZES), 11)


async def test_files() -> None:
    await check(parts.files(SIZES), 3)


async def test_object_store() -> None:
    await check(parts.object_store(SIZES), 4)


async def test_service() -> None:
    await check(parts.service(SIZES), 2)


def test_sqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.sqs, "THREADS", 2)
    found = list(parts.sqs(SIZES))
    assert len(found) == 2
    assert all(figure.ratio > 0 for figure in found)


async def test_sql() -> None:
    await check(parts.sql(SIZES), 12)


async def test_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.partitions, "MANY", 1_000)
    monkeypatch.setattr(bench.wide, "QUEUES", 20)
    monkeypatch.setattr(bench.crowd, "CROWD", 20)
    monkeypatch.setattr(bench.crowd, "MESSAGES", 5)
    await check(parts.scale(SIZES), 16)


def test_the_command_prints_the_figures_of_a_part(tmp_path: Path) -> None:
    sizes = ("--seconds", "0.05", "--rounds", "1", "--deep", "2000")
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "engine", *sizes],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 9, done.stderr
    assert all("(at least " in line or "(at most " in line for line in lines)


async def test_console() -> None:
    await check(console(SIZES.seconds, 200, queues=30), 3)
