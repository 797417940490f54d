"""The one Spark session of a test process: two threads, nothing listening but on this machine.

A session takes seconds to start and a Java process of its own, so everything that needs one
asks ``test_session`` for the same. It ends with the process. Import the module, not the
function (``from tests import spark_session``): pytest takes what is called ``test_…`` in a
module of tests for a test.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from functools import cache

from pyspark.sql import SparkSession


@cache
def test_session() -> SparkSession:
    """Start the session when it is asked for first, and return it from then on."""
    # Spark looks for ``python3`` on the path otherwise, which need not be this one.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder = tempfile.mkdtemp(prefix="penstock-spark-")
    settings: dict[str, str | bool | float | int | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": f"{folder}/local",
        "spark.log.level": "ERROR",
        # Otherwise every operator of a column looks for the line of the program it comes from.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    session = SparkSession.builder.master("local[2]").appName("tests").config(map=settings)
    spark = session.getOrCreate()
    atexit.register(_end, spark, folder)
    return spark


def _end(spark: SparkSession, folder: str) -> None:
    spark.stop()
    shutil.rmtree(folder, ignore_errors=True)
