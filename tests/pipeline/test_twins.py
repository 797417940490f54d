"""Two runs of a job never write to one folder (no Spark here)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.errors import Conflict
from penstock.model.runs import RUN_LOST_MS
from penstock.pipeline.context import JobContext, JobOptions
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.remote import Server
from penstock.pipeline.twins import only_run
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run


@contextmanager
def context(server: Hosted, name: str) -> Iterator[JobContext]:
    made = JobContext(
        JobOptions(server=Server(server.url)), run=name, job="archive", clock=server.clock
    )
    try:
        yield made
    finally:
        made.close()


def test_one_run_per_job_and_folder(server: Hosted, tmp_path: Path) -> None:
    with context(server, "one") as one, context(server, "two") as two:
        with only_run(one, "archive", str(tmp_path)):
            with pytest.raises(Conflict, match=r"Process \d+ on this machine is running"):
                run(server, None, archive, run="three", lake=tmp_path)
            with only_run(two, "report", f"file://{tmp_path}"):
                pass
        with only_run(two, "archive", str(tmp_path)):
            pass


def test_a_folder_that_the_first_run_creates(server: Hosted, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with context(server, "one") as one, only_run(one, "archive", str(lake)):
        lake.mkdir()
        with pytest.raises(Conflict, match="on this machine"):
            run(server, None, archive, run="two", lake=lake)


def test_a_run_on_another_machine_until_it_is_lost(server: Hosted, tmp_path: Path) -> None:
    with context(server, "one") as one, context(server, "two") as two:
        with only_run(one, "archive", str(tmp_path)):
            record = server.ask(lambda q: q.run("one"))
        assert record is not None
        moved = replace(record, progress={**record.progress, "host": "elsewhere"})
        server.ask(lambda q: q.put_run(moved))
        with (
            pytest.raises(Conflict, match="Run one on elsewhere"),
            only_run(two, "archive", str(tmp_path)),
        ):
            pass
        server.advance(RUN_LOST_MS + 1)
        with only_run(two, "archive", str(tmp_path)):
            pass
