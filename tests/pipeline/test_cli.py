"""``penstock pipeline`` as a person types it: what it prints, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.exits import Exit
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted


def pipeline(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_jobs_are_listed() -> None:
    done = pipeline("--help")
    assert done.returncode == Exit.OK
    for job in [
        "route",
        "archive",
        "retention",
        "vacuum",
        "export",
        "report",
        "replay",
        "ingest",
        "verify",
        "run",
    ]:
        assert f"  {job} " in done.stdout


@law("E1")
@pytest.mark.parametrize(
    "words, code, said",
    [
        (("report", "--url", "http://127.0.0.1:9"), Exit.UNAVAILABLE, "127.0.0.1:9"),
        (("archive", "--conf", "nothing"), Exit.BAD_INPUT, "KEY=VALUE"),
        (("archive", "--table-format", "parquet"), Exit.BAD_INPUT, "penstock pipeline export"),
        (("ingest", "in", "orders", "--column", "key"), Exit.BAD_INPUT, "NAME=COLUMN"),
        (("replay", "q", "--source", "elsewhere"), Exit.USAGE, "lake"),
        (("retention", "--continuous"), Exit.USAGE, "No such option"),
    ],
)
def test_what_is_wrong_is_said_before_spark_is_started(
    words: tuple[str, ...], code: Exit, said: str
) -> None:
    done = pipeline(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Spark" not in done.stdout


@law("E1")
def test_no_java(server: Hosted, tmp_path: Path) -> None:
    done = pipeline("report", "--url", server.url, "--output", str(tmp_path), JAVA_HOME="/nowhere")
    assert done.returncode == Exit.UNAVAILABLE
    assert "/nowhere" in done.stderr
    assert "Install Java 17" in done.stderr


@law("E1")
def test_unknown_things_are_refused_and_recorded(server: Hosted) -> None:
    url = ("--url", server.url)
    assert pipeline("route", "nobody", *url).returncode == Exit.NOT_FOUND
    assert pipeline("replay", "nobody", *url).returncode == Exit.NOT_FOUND
    assert pipeline("archive", *url).returncode == Exit.BAD_INPUT
    assert [run.state for run in server.ask(lambda q: q.runs())] == ["failed"] * 3


def test_a_replay_needs_no_spark_and_says_what_it_did(server: Hosted) -> None:
    server.ask(lambda q: q.create_queue("billing"))
    server.publish("orders", b"1")
    (delivery,) = server.claim("billing")
    server.ask(lambda q: q.reject(delivery, "broken"))
    done = pipeline("replay", "billing", "--url", server.url, "--replay-id", "r", "--json")
    assert done.returncode == Exit.OK, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["job"], summary["replayed"], summary["replay_id"]) == ("replay", 1, "r")
    (run,) = server.ask(lambda q: q.runs("replay"))
    assert (run.id, run.state, run.summary["replayed"]) == (summary["run"], "succeeded", 1)
    # Without an id it says which one it takes before anything is moved, for a repetition.
    done = pipeline("replay", "billing", "--url", server.url, "--json")
    assert f"--replay-id {json.loads(done.stdout)['replay_id']}" in done.stderr


def test_the_log_of_a_job_is_json_if_it_is_set_so(server: Hosted, tmp_path: Path) -> None:
    """No Spark: the log is empty. The event loop of the driver logs its start."""
    words = ("archive", "--url", server.url, "--lake", str(tmp_path))
    logged = {"PENSTOCK_LOG_FORMAT": "json", "PENSTOCK_LOG_LEVEL": "debug"}
    done = pipeline(*words, **logged)
    assert done.returncode == Exit.OK, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert "asyncio" in {line["logger"] for line in lines}
    assert "{" not in pipeline(*words, PENSTOCK_LOG_LEVEL="debug").stderr
