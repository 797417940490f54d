"""``run``: every duty of the pipeline in one session: route, archive, retention, report.

Each duty has an interval. A duty that fails does not end a continuous run: it is noted, and tried
again when it is due. A run of one pass ends with the first error, and so does any run whose lake
another run or another store has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.errors import Conflict, PenstockError
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.jobs.archive import Archiving
from penstock.pipeline.jobs.report import DAY_S, report
from penstock.pipeline.jobs.retention import retention
from penstock.pipeline.jobs.route import Routing
from penstock.pipeline.spans import work_span
from penstock.pipeline.twins import only_run

__all__ = ["DUTIES", "run"]

DUTIES: Final = ("route", "archive", "retention", "report")
_HOUR_S: Final = 3600.0


class _Duty(Struct):
    """One duty, and when it is due."""

    name: str
    act: Callable[[], object]
    every_s: float
    due_at: float = 0.0
    """Epoch milliseconds; first at once."""
    passes: int = 0
    failures: int = 0


def run(
    context: JobContext,
    *,
    output: str | None = None,
    route_every_s: float | None = None,
    archive_every_s: float | None = None,
    retention_every_s: float = DAY_S,
    report_every_s: float = _HOUR_S,
    report_period_s: int | str = DAY_S,
    without: tuple[str, ...] = (),
) -> Summary:
    """Run one pass of each duty; if continuous, at their intervals until asked to end.

    Routing and archiving are due in every pass unless they have an interval of their own.
    """
    with only_run(context, "archive", context.lake):
        routing, archiving = Routing(context), Archiving(context)
        archiving.begin()
        pass_s = context.options.interval_s
        duties = [
            _Duty("route", routing.hand_over, route_every_s or pass_s),
            _Duty("archive", archiving.once, archive_every_s or pass_s),
            _Duty("retention", lambda: retention(context), retention_every_s),
            _Duty(
                "report",
                lambda: report(context, output=output, period_s=report_period_s),
                report_every_s,
            ),
        ]
        chosen = [duty for duty in duties if duty.name not in without]
        while True:
            for duty in chosen:
                _run_if_due(context, duty)
            if not context.options.continuous or context.wait():
                break
    return {
        **{f"route_{name}": value for name, value in routing.summary().items()},
        **{f"archive_{name}": value for name, value in archiving.summary().items()},
        **{f"{duty.name}_passes": duty.passes for duty in chosen},
        **{f"{duty.name}_failures": duty.failures for duty in chosen},
    }


def _run_if_due(context: JobContext, duty: _Duty) -> None:
    now = context.clock.now()
    if now < duty.due_at or context.stopping.is_set():
        return
    try:
        with work_span(f"duty {duty.name}", {"penstock.run": context.run}):
            duty.act()
    except PenstockError as error:
        if not context.options.continuous or isinstance(error, Conflict):
            raise
        duty.failures += 1
        context.note(f"{duty.name} failed and is tried again: {error.detail}")
    else:
        duty.passes += 1
    # From the begin of the pass, so that a report has the same period every time.
    duty.due_at = now + duty.every_s * 1000
