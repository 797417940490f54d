"""Runs flows together: one Spark session, and a thread and a recorded run for each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.client.options import random_prefix
from penstock.errors import PenstockError
from penstock.pipeline.context import JobContext, JobOptions, Summary, Watcher
from penstock.pipeline.flow import Flow
from penstock.pipeline.jobs.flow import run_flow
from penstock.pipeline.jobs.job import run_job
from penstock.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run_flows"]

#: Length of a run id.
_RUN_DIGITS: Final = 12


def run_flows(
    options: JobOptions,
    flows: Sequence[Flow],
    checkpoints: str,
    *,
    watcher: Watcher,
    stopping: threading.Event,
) -> list[Future[Summary]]:
    """Run the flows until all have ended; a flow that fails does not end the others."""
    spark = spark_session("penstock flows", master=options.master, settings=options.settings)

    def run(flow: Flow) -> Summary:
        return _run(options, flow, checkpoints, watcher, stopping, spark)

    try:
        with ThreadPoolExecutor(len(flows)) as threads:
            return [threads.submit(run, flow) for flow in flows]
    finally:
        # The pool has waited for all of them.
        spark.stop()


def _run(
    options: JobOptions,
    flow: Flow,
    checkpoints: str,
    watcher: Watcher,
    stopping: threading.Event,
    spark: SparkSession,
) -> Summary:
    # This makes the session the active one of this thread, by which Spark finds the format of a
    # sink.
    spark.createDataFrame([], "nothing INT")
    context = JobContext(
        options,
        run=random_prefix()[:_RUN_DIGITS],
        job=f"flow.{flow.name}",
        watcher=watcher,
        stopping=stopping,
        spark=spark,
    )
    try:
        summary = run_job(partial(run_flow, flow=flow, checkpoints=checkpoints), context)
        return {"run": context.run, **summary}
    except PenstockError as error:
        watcher.note(f"{flow.name} failed: {error.detail}")
        raise
    finally:
        context.close()
