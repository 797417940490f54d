"""An archive of Spark's classes, with which Java starts a job in two thirds of the processor time.

Java (13 and newer) can save the classes that a program has loaded in a file and map it into
memory the next time, instead of reading, checking and linking them again. ``penstock pipeline
prepare`` makes the file; sessions on this machine use it if it is there. Its name has the versions
of Java and Spark, and Java itself ignores an archive of other class files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import NoSpark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["archive_path", "make_archive", "options_to_use"]

_DIGITS: Final = 16
#: Saving 25,000 classes takes 15 s on an idle machine.
_SAVING_S: Final = 1_800
#: Java logs every class that it cannot save, and an archive that it cannot use.
_QUIET: Final = "-Xlog:cds*=off"


def archive_path() -> Path | None:
    """Where the archive for this Java and this Spark is, or would be; None: there is no Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    release = Path(java).resolve().parents[1] / "release"
    try:
        text = release.read_text()
    except OSError:
        return None
    name = hashlib.sha256(f"{release}\0{text}\0{version('pyspark')}".encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "penstock" / f"spark-{name[:_DIGITS]}.jsa"


def options_to_use() -> tuple[str, ...]:
    """Java's options for the archive; empty if there is none."""
    path = archive_path()
    if path is None or not path.exists() or " " in str(path):
        return ()
    return (f"-XX:SharedArchiveFile={path}", _QUIET)


def make_archive() -> Path:
    """Start Spark, run what jobs run, and save the classes. Ends the session."""
    from penstock.pipeline.session import session_settings, spark_session  # noqa: PLC0415

    path = archive_path()
    if path is None or " " in str(path):
        raise NoSpark("The folder of this Java has no file named release, or its path has spaces.")
    path.parent.mkdir(parents=True, exist_ok=True)
    # What an earlier call was writing when it was killed.
    for old in (path, *path.parent.glob(f"{path.stem}.*.part")):
        old.unlink(missing_ok=True)
    # Java writes where only this process looks.
    part = path.with_suffix(f".{os.getpid()}.part")
    options = "spark.driver.extraJavaOptions"
    java = f"{session_settings(None, {}, short=True)[options]} -XX:ArchiveClassesAtExit={part}"
    settings = {options: f"{java} {_QUIET}"}
    spark = spark_session("penstock prepare", master="local[2]", settings=settings, short=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            _use(spark, f"{folder}/rows")
        context: Any = spark.sparkContext
        process = context._gateway.proc  # noqa: SLF001  (pyspark does not tell otherwise)
        spark.stop()
        # Java ends, and saves the classes, when its standard input ends.
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SAVING_S)
        if not part.exists():
            raise NoSpark("Java did not save its classes; it has to be version 13 or newer.")
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _use(spark: SparkSession, folder: str) -> None:
    """Load the classes that jobs need: Python, shuffles, windows, Parquet, Arrow."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    rows = spark.range(1_000).withColumn("day", F.current_date())
    rows = rows.withColumn("text", F.sha2(F.col("id").cast("string"), 256))
    rows = rows.withColumn("headers", F.create_map(F.lit("a"), F.struct(F.col("id").alias("i"))))
    rows.write.partitionBy("day").parquet(folder)
    read = spark.read.parquet(folder).where("id > 1")
    read.select("id").mapInArrow(same, "id bigint").toArrow()
    order = Window.partitionBy("day").orderBy("id")
    numbered = read.withColumn("before", F.lag("id").over(order)).persist()
    grouped = numbered.groupBy("day").agg(
        F.count("*"), F.max("before"), F.percentile_approx("id", 0.5), F.collect_list("id")
    )
    grouped.collect()
    numbered.join(read.select("id"), "id", "left").orderBy("id").limit(3).toPandas()
    read.repartition(2, "id").unionByName(read).toLocalIterator()
    spark.createDataFrame([(1,)], "n int").collect()
