"""Jobs as the command line runs them, in the session and on the server of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from penstock.pipeline.context import JobContext, JobOptions, Summary
from penstock.pipeline.jobs.job import run_job
from penstock.pipeline.remote import Server
from tests.pipeline.hosted import Hosted


def run(
    server: Hosted,
    spark: SparkSession | None,
    job: Callable[..., Summary],
    *,
    run: str = "run-1",
    lake: object = None,
    credential: str | None = None,
    **options: Any,
) -> Summary:
    """Run a job to its end; its summary. It does not wait before it asks the server once more."""
    given = JobOptions(
        server=Server(server.url, credential), lake=None if lake is None else str(lake)
    )
    context = JobContext(given, run=run, job=job.__name__, spark=spark, clock=server.clock)
    try:
        return run_job(lambda context: job(context, **options), context)
    finally:
        context.close()
