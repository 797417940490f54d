"""The Spark session, built in this one place: jobs never name a master.

On a laptop Spark runs in this process on all cores. Under ``spark-submit``, or with a master in
the settings, the same job runs on a cluster.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import NoSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_java", "session_settings", "spark_session"]

#: What every job relies on. What a caller gives goes over it.
_SETTINGS: Final = {
    # Epoch milliseconds and timestamps are the same instant, wherever a worker runs.
    "spark.sql.session.timeZone": "UTC",
    # Ranges of offsets and simple comparisons are read by the server, not thrown away by Spark.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Rows of a batch that goes to Python. What a batch costs by itself, such as a row a queue, is
    # shared by more of them than Spark's 10,000; a batch ends after 64 MiB all the same.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # Otherwise every operator of a column looks for the line of the program that it comes from.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
#: What Spark says on a terminal; a cluster has its own.
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
#: Where Spark runs if nobody says so.
_LOCAL: Final = "local[*]"
#: Of a shuffle on one machine. Spark's 200 are for clusters: a report of ten thousand messages took
#: a minute with them, nearly all of it for tasks that had nothing to do.
_LOCAL_PARTITIONS: Final = "16"


def spark_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none."""
    check_java()
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise NoSpark("PySpark is not installed: pip install 'penstock[spark]'.") from error
    if not _submitted():
        # Spark looks for ``python3`` on the path otherwise, which need not have Penstock.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in session_settings(master, settings or {}).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise NoSpark(f"Spark does not start: {_first_line(error)}") from error


def session_settings(master: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """What the session is made with, if it runs on ``master`` and is given these settings."""
    chosen = dict(_SETTINGS)
    if not _submitted():
        chosen["spark.master"] = _LOCAL
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    chosen |= settings
    if master is not None:
        chosen["spark.master"] = master
    if chosen.get("spark.master", "").startswith("local"):
        chosen.setdefault("spark.sql.shuffle.partitions", _LOCAL_PARTITIONS)
    return chosen


def check_java() -> None:
    """Refuse, before anything is begun, where there is no Java."""
    home = os.environ.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin" / "java").exists():
            raise NoSpark(f"JAVA_HOME is {home!r}, and there is no bin/java.", field="JAVA_HOME")
    elif shutil.which("java") is None:
        raise NoSpark("There is no java on the PATH, and JAVA_HOME is not set.")


def _submitted() -> bool:
    """Whether ``spark-submit`` started this process, and its settings say where to run."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
