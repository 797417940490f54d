"""Jobs are heard of while they run, and no longer (no Spark here)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from penstock.errors import Unreachable
from penstock.model.runs import Run
from penstock.pipeline.context import JobContext, JobOptions
from penstock.pipeline.heartbeat import Heartbeat
from penstock.pipeline.remote import Server
from penstock.testing.clock import FakeClock
from tests.pipeline.hosted import Hosted

RUN = Run(id="r", job="archive", state="running", started_at=1, updated_at=1)


class Listening:
    """In the place of a server: keeps what is recorded, and fails the first time."""

    def __init__(self) -> None:
        self.heard: list[Run] = []
        self.twice = threading.Event()

    def open(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, call: Callable[[Any], object]) -> None:
        call(self)

    def put_run(self, run: Run) -> None:
        self.heard.append(run)
        if len(self.heard) == 1:
            raise Unreachable("gone for a moment")
        self.twice.set()


def test_a_run_is_recorded_until_it_is_over() -> None:
    server: Any = Listening()
    heartbeat = Heartbeat(server, FakeClock(7), every_ms=1)
    heartbeat.run = RUN
    assert server.twice.wait(60)
    heartbeat.close()
    count = len(server.heard)
    assert {run.updated_at for run in server.heard} == {7}
    assert len(server.heard) == count
    assert not heartbeat._thread.is_alive()


def test_a_job_that_is_over_is_not_recorded_as_running(server: Hosted) -> None:
    options = JobOptions(server=Server(server.url))
    context = JobContext(options, run="r", job="archive", clock=server.clock)
    context.record("running")
    beating = context._heartbeat
    assert beating is not None
    context.record("succeeded")
    assert not beating._thread.is_alive()
    context.close()
    found = server.ask(lambda q: q.run("r"))
    assert found is not None
    assert found.state == "succeeded"
