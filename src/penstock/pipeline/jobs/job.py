"""Runs a job, and stores its run record with the broker while it runs and at its end.

A job is a function of a :class:`JobContext` that returns a summary, a flat dict of names and
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from penstock.errors import PenstockError
from penstock.model.runs import RunState
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.spans import job_span

__all__ = ["Job", "run_job"]

Job: TypeAlias = Callable[[JobContext], Summary]


def run_job(job: Job, context: JobContext) -> Summary:
    """Run the job to its end, record it, and give it a span.

    The server is contacted before Spark starts.
    """
    with job_span(context.job, context.run) as attributes:
        summary = _run(job, context)
        attributes |= {f"penstock.summary.{name}": value for name, value in summary.items()}
        return summary


def _run(job: Job, context: JobContext) -> Summary:
    context.record("running")
    try:
        summary = job(context)
    except BaseException as error:
        detail = error.detail if isinstance(error, PenstockError) else str(error)
        # The error may be that the server is unreachable.
        with suppress(PenstockError):
            context.record("failed", error=f"{type(error).__name__}: {detail}"[:2_000])
        raise
    if summary.get("violations"):
        # The job itself ran to its end, but violations count as a failure.
        found = f"{summary['violations']} violations of the laws; see the summary."
        context.record("failed", summary=summary, error=found)
    else:
        state: RunState = "stopped" if context.stopping.is_set() else "succeeded"
        context.record(state, summary=summary)
    return summary
