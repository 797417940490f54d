"""The JVM that the killed jobs share, and the processes that run them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from bench.job_kills.child import Gateway, Order, perform, workers
from penstock.pipeline.session import spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Ended", "JobHost", "job_host"]

#: Modules that a child has loaded when it begins.
_PRELOADED: Final = [
    "bench.job_kills.child",
    "bench.job_kills.scenarios",
    "deltalake",
    "penstock.pipeline.jobs.archive",
    "penstock.pipeline.jobs.flow",
    "penstock.pipeline.jobs.report",
    "penstock.pipeline.jobs.retention",
    "pyspark.sql",
    "pyspark.sql.functions",
]
_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "OFF",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "20s",
}
_PATIENCE_S: Final = 600.0
#: At most so many idle ones.
_WORKERS: Final = 8


class Ended(Struct, frozen=True):
    """How a process ended."""

    is_killed: bool
    steps: int
    seconds: float


class JobHost:
    """Runs jobs in processes, and kills them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        java: Any = spark.sparkContext._gateway
        self._gateway = Gateway(
            java.gateway_parameters.port, java.gateway_parameters.auth_token, java.proc.pid
        )
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(_PRELOADED)

    def run(self, order: Order, kill_after_s: float | None = None) -> Ended:
        """Run a job until it ends or is killed; raises if it fails."""
        steps = self._processes.Value("i", 0)
        child = self._processes.Process(target=perform, args=(order, self._gateway, steps))
        begin = time.monotonic()
        child.start()
        try:
            child.join(_PATIENCE_S if kill_after_s is None else kill_after_s)
            if child.is_alive():
                if kill_after_s is None:
                    raise AssertionError(f"{order.name} takes more than {_PATIENCE_S:.0f} s")
                self._kill(child.pid)
                child.join()
        finally:
            if child.is_alive():
                child.kill()
                child.join()
            if child.exitcode == -signal.SIGKILL:
                self._calm()
        if child.exitcode not in (0, -signal.SIGKILL):
            raise AssertionError(f"{order.name} ended with {child.exitcode}")
        return Ended(child.exitcode != 0, steps.value, time.monotonic() - begin)

    def _kill(self, pid: int | None) -> None:
        for one in (*workers(self._gateway.pid), pid):
            with suppress(ProcessLookupError):
                os.kill(one or 0, signal.SIGKILL)

    def _calm(self) -> None:
        """End what the killed driver has left in the JVM, as the JVM's own death would."""
        for query in self._spark.streams.active:
            with suppress(Exception):
                query.stop()
        context = self._spark.sparkContext
        context.cancelAllJobs()
        tracker = context.statusTracker()
        until = time.monotonic() + _PATIENCE_S
        while tracker.getActiveJobsIds():
            if time.monotonic() > until:
                raise AssertionError("Spark's tasks do not end")
            time.sleep(0.02)
        self._spark.catalog.clearCache()
        self._renew_workers()

    def _renew_workers(self) -> None:
        """Let Spark notice that its idle workers are dead, which costs it a task each."""
        for _ in range(_WORKERS):
            with suppress(Exception):
                self._spark.range(2, numPartitions=2).mapInArrow(_same, "id bigint").collect()
                return


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


@contextmanager
def job_host(folder: Path) -> Iterator[JobHost]:
    """A JVM for the block, or that of the process's session."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  (children import this module)

    active = SparkSession.getActiveSession()
    if active is not None:
        try:
            yield JobHost(active)
        finally:
            _end_fork_server()
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    settings = {**_SETTINGS, "spark.local.dir": str(folder / "spark")}
    spark = spark_session("kills", master="local[2]", settings=settings, short=True)
    try:
        yield JobHost(spark)
    finally:
        spark.stop()
        _end_fork_server()


def _end_fork_server() -> None:
    """It would end with this process, but a test may leave none behind."""
    for module, name in ((forkserver, "_forkserver"), (resource_tracker, "_resource_tracker")):
        getattr(module, name)._stop()
