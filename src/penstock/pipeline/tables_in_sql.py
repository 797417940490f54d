"""Makes the tables of a server known to a Spark session: its defaults, its SQL names."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from penstock.errors import BadInput, BadSetting
from penstock.pipeline.format.defaults import PREFIX, SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["create_tables", "register"]

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_TABLES: Final = ("log", "deliveries", "failed", "history")
#: What Spark allows as the name of a database.
_DATABASE: Final = re.compile(r"\w+", re.ASCII)
#: An import from a slow disk; it takes a second from a fast one.
_IMPORT_S: Final = 120


def register(spark: SparkSession) -> None:
    """Prepare a session for ``format("penstock")``.

    Checks that Spark's Python processes have Penstock, switches filter pushdown on, and passes the
    session's settings ``spark.penstock.url``, ``.credential``, ``.ca``, ``.cert`` and ``.certKey``
    on to the format, also those that were set after Spark was started. Raises ``BadSetting`` if the
    processes lack it.
    """
    _check_python(spark)
    spark.conf.set(_PUSHDOWN, "true")
    names = [f"{PREFIX}{name}" for name in SETTINGS]
    found = {name: value for name in names if (value := spark.conf.get(name, None)) is not None}
    if not found:
        return
    from penstock.pipeline.format.source import PenstockSource  # noqa: PLC0415  (slow)

    class SessionSource(PenstockSource):
        """The format with the settings of a session; Spark copies the class to its processes."""

        session = found

    spark.dataSource.register(SessionSource)


def create_tables(spark: SparkSession, url: str | None = None, database: str = "penstock") -> None:
    """Create a database with the tables ``log``, ``deliveries``, ``failed`` and ``history``.

    Existing tables are replaced. Without a URL they belong to the default server.
    """
    if _DATABASE.fullmatch(database) is None:
        raise BadInput(f"A database cannot be called {database!r}.", field="database")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    options = {} if url is None else {"url": url}
    for table in _TABLES:
        given = ", ".join(
            f"{name} '{_quoted(value)}'" for name, value in {**options, "table": table}.items()
        )
        spark.sql(f"DROP TABLE IF EXISTS {database}.{table}")
        spark.sql(f"CREATE TABLE {database}.{table} USING penstock OPTIONS ({given})")


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


def _check_python(spark: SparkSession) -> None:
    """Raise ``BadSetting`` if the Python that Spark starts has no Penstock."""
    python = getattr(spark.sparkContext, "pythonExec", sys.executable)
    if python == sys.executable:
        return
    try:
        command = [python, "-c", "import penstock.pipeline"]
        done = subprocess.run(  # noqa: S603  (the Python that Spark runs anyway)
            command, capture_output=True, timeout=_IMPORT_S, check=False
        )
        fails = done.returncode != 0
    except OSError:
        fails = True
    if fails:
        raise BadSetting(
            f"Spark starts {python!r}, which has no penstock, and would answer "
            "DATA_SOURCE_NOT_FOUND. Activate the virtual environment, or set "
            f"PYSPARK_PYTHON={sys.executable} before Spark starts.",
            field="PYSPARK_PYTHON",
        )
