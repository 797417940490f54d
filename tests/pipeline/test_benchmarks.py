"""Every benchmark of the pipeline runs and yields its figures; so short a run measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import bench.routing_many
from bench import pipeline_stream
from bench.job_kills.__main__ import kill_job
from bench.job_kills.host import job_host
from bench.measuring import Figure
from bench.pipeline_kills import killing
from bench.pipeline_lake import archiving
from bench.pipeline_sink import publishing
from bench.pipeline_source import reading
from bench.pipeline_stream import consuming
from bench.routing_many import routing_many

MESSAGES = 1_000


@pytest.fixture(autouse=True)
def _folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BENCH_DIR", str(tmp_path))


def check(figures: Sequence[Figure], count: int) -> None:
    assert len(figures) == count
    assert all(figure.ratio > 0 for figure in figures)


def test_reading_the_log() -> None:
    check(reading(MESSAGES, rounds=1), 2)


def test_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, queues in (("QUEUES", 20), ("NATIVE_QUEUES", 3), ("FEW", 2)):
        monkeypatch.setattr(bench.routing_many, name, queues)
    check(routing_many(rounds=1, rows=MESSAGES), 2)


def test_publishing() -> None:
    check([publishing(MESSAGES, rounds=1)], 1)


def test_archiving() -> None:
    check(archiving(MESSAGES, rounds=1), 2)


def test_a_killed_archiver_loses_and_doubles_nothing() -> None:
    assert killing(MESSAGES, kills=1).ratio == 1


def test_a_killed_import_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """One of the jobs, twice; ``python -m bench.job_kills`` kills all of them."""
    with job_host(tmp_path) as host:
        result = kill_job(host, tmp_path / "ingest", "ingest", kills=2)
    assert (result.kills, result.lost, result.doubled) == (2, 0, 0)
    assert result.steps > 3


def test_consuming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_stream, "_WARM_S", 0.1)
    check([consuming(seconds=0.5)], 1)
