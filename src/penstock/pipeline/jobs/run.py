"""``run``: routes, archives and reports repeatedly in one session."""

from __future__ import annotations

from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.jobs.archive import Archiving
from penstock.pipeline.jobs.report import report
from penstock.pipeline.jobs.route import Routing

__all__ = ["run"]


def run(
    context: JobContext, *, output: str | None = None, report_every_s: float = 300.0
) -> Summary:
    """Run one pass of each; if continuous, until asked to end."""
    routing = Routing(context)
    archiving = Archiving(context)
    archiving.begin()
    reports = 0
    reported_at: int | None = None
    while True:
        routing.hand_over()
        archiving.once()
        now = context.clock.now()
        if reported_at is None or now - reported_at >= report_every_s * 1000:
            report(context, output=output)
            reported_at = now
            reports += 1
        if not context.options.continuous or context.wait():
            break
    return {
        **{f"route_{name}": value for name, value in routing.summary().items()},
        **{f"archive_{name}": value for name, value in archiving.summary().items()},
        "reports": reports,
    }
