"""One Spark session for all of these tests, and a server with an empty store for each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, str(Path(__file__).parents[2]))

from penstock.model.message import Published
from tests import spark_session
from tests.pipeline.hosted import Hosted

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return spark_session.test_session()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    """A server of this process with an empty store on disk."""
    hosted = Hosted(f"rocksdb://{tmp_path}/store").start()
    yield hosted
    hosted.stop()


@pytest.fixture
def publish(server: Hosted) -> Callable[..., list[Published]]:
    return server.publish


@pytest.fixture
def table(spark: SparkSession, server: Hosted) -> Callable[..., DataFrame]:
    """``table(payload=False)``: a table of the server, as Spark reads it."""

    def load(**options: Any) -> DataFrame:
        return spark.read.format("penstock").options(**server.options(**options)).load()

    return load


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Spark hands its filters to the source, as the jobs' own sessions have it."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)
