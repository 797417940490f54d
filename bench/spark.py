"""Spark for the benchmarks: two local cores, quiet, with its files on the measured disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.pipeline.session import spark_session

__all__ = ["CORES", "bench_session"]

CORES: Final = 2


@contextmanager
def bench_session(folder: Path) -> Iterator[SparkSession]:
    """A session that ends with the block, or the one that the process has already."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    # Workers must be able to import the benchmarks.
    here = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.local.dir": str(folder / "spark"),
        # Spark logs at length when it falls back from compiled to interpreted code.
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    session = spark_session("bench", master=f"local[{CORES}]", settings=settings)
    try:
        yield session
    finally:
        session.stop()
