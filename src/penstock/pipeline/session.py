"""The Spark session, created only here: jobs never name a master.

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
from penstock.pipeline.class_archive import options_to_use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_java", "session_settings", "spark_session"]

#: Settings that every job relies on. The caller's settings override them.
_SETTINGS: Final = {
    # Epoch milliseconds and timestamps are the same instant, wherever a worker runs.
    "spark.sql.session.timeZone": "UTC",
    # The server evaluates offset ranges and simple comparisons, instead of Spark after reading.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Rows per batch for Python. Spark's default is 10,000; more rows share the fixed cost of a
    # batch, such as one row per queue. A batch also ends after 64 MiB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # Otherwise every column operator determines the line of the program that it comes from.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
#: Spark's logging on this machine; a cluster has its own.
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
#: Where Spark runs by default.
_LOCAL: Final = "local[*]"
#: Shuffle partitions on one machine. Spark's 200 are for clusters: a report of ten thousand
#: messages took a minute with them, nearly all of it for empty tasks.
_LOCAL_PARTITIONS: Final = "16"
#: A short job spends most of its processor time in Java's compiler. Without its optimising stage,
#: the concurrent garbage collector and the web interface, a session and its first query take 7
#: instead of 14.2 s of processor time.
_SHORT_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_SHORT: Final = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}


def spark_session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    short: bool = False,
) -> SparkSession:
    """The session of this process, created if there is none; ``short``: for a small input."""
    check_java()
    # Slow to import, and Java is checked first.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if not _submitted():
        # Otherwise Spark uses ``python3`` from the PATH, which may not have Penstock.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in session_settings(master, settings or {}, short=short).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise NoSpark(f"Spark does not start: {_first_line(error)}") from error


def session_settings(
    master: str | None, settings: Mapping[str, str], *, short: bool = False
) -> dict[str, str]:
    """The settings of a session on ``master`` with the caller's ``settings``."""
    chosen = dict(_SETTINGS)
    place = master or settings.get("spark.master", _LOCAL)
    short = short and not _submitted() and place.startswith("local")
    if not _submitted():
        chosen["spark.master"] = _LOCAL
        java = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *(_SHORT_JAVA if short else ())]
        if place.startswith("local"):
            java += options_to_use()
        chosen["spark.driver.extraJavaOptions"] = " ".join(java)
    chosen |= (_SHORT if short else {}) | dict(settings)
    if master is not None:
        chosen["spark.master"] = master
    if chosen.get("spark.master", "").startswith("local"):
        chosen.setdefault("spark.sql.shuffle.partitions", _LOCAL_PARTITIONS)
    return chosen


def check_java() -> None:
    """Raise ``NoSpark`` if there is no Java, before anything is started."""
    home = os.environ.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin" / "java").exists():
            raise NoSpark(f"JAVA_HOME is {home!r}, but has no bin/java.", field="JAVA_HOME")
    elif shutil.which("java") is None:
        raise NoSpark("There is no java on the PATH, and JAVA_HOME is not set.")


def _submitted() -> bool:
    """Whether ``spark-submit`` started this process, so that it decides where to run."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
