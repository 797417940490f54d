"""``run``: every duty of the pipeline in one session, each at its interval."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.errors import BadInput
from penstock.pipeline.context import JobContext, JobOptions
from penstock.pipeline.jobs import run as run_module
from penstock.pipeline.remote import Server
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run


def test_one_pass_of_each(server: Hosted, spark: SparkSession, tmp_path: Path) -> None:
    server.publish("orders", *[NewMessage(b"%d" % n, headers={"n": n}) for n in range(30)])
    server.ask(lambda q: q.create_queue("some", "n < 10", start="earliest"))
    lake = tmp_path / "lake"
    summary = run(server, spark, run_module.run, lake=lake)
    assert (summary["route_assigned"], summary["archive_entries"]) == (10, 30)
    for duty in run_module.DUTIES:
        assert (summary[f"{duty}_passes"], summary[f"{duty}_failures"]) == (1, 0)
    assert (lake / "reports" / "index.html").exists()
    (record,) = server.ask(lambda q: q.runs("run"))
    assert (record.state, record.report) == ("succeeded", str(lake / "reports" / "index.html"))


def test_each_duty_is_due_at_its_own_interval(server: Hosted, tmp_path: Path) -> None:
    """No Spark: an empty log has nothing to archive, and the slow duties are replaced."""
    acted: list[str] = []
    failing = {"report": 1}

    def duty(name: str) -> Callable[..., None]:
        def act(*_: object, **__: object) -> None:
            acted.append(name)
            if failing.get(name, 0):
                failing[name] -= 1
                raise BadInput("not this time")

        return act

    notes: list[str] = []
    context = JobContext(
        JobOptions(server=Server(server.url), lake=str(tmp_path), continuous=True),
        run="r",
        job="run",
        clock=server.clock,
    )
    passes = iter([False, False, True])

    def wait(seconds: float | None = None) -> bool:
        server.advance(10_000)
        return next(passes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "note", notes.append)
        patch.setattr(context, "wait", wait)
        replaced: dict[str, Callable[..., object]] = {
            "Routing.hand_over": duty("route"),
            "Archiving.begin": lambda _: None,
            "Archiving.once": duty("archive"),
            "Archiving.summary": lambda _: {},
            "retention": duty("retention"),
            "report": duty("report"),
        }
        for name, act in replaced.items():
            patch.setattr(f"penstock.pipeline.jobs.run.{name}", act)
        summary = run_module.run(
            context, archive_every_s=15, report_every_s=10, without=("retention",)
        )
    context.close()
    assert acted == ["route", "archive", "report", "route", "report", "route", "archive", "report"]
    assert (summary["report_passes"], summary["report_failures"]) == (2, 1)
    assert notes == ["report failed and is tried again: not this time"]
