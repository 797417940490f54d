"""The second part of the demo, ``demo.py``: the same store behind a server, and Spark jobs.

Archive, a queue over older messages, a replay by filter from the lake, and a report. The jobs get
the same options here as from ``penstock pipeline`` on a command line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.pipeline.context import JobContext, JobOptions, Summary
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.job import Job, run_job
from penstock.pipeline.jobs.replay import replay
from penstock.pipeline.jobs.report import report
from penstock.pipeline.jobs.route import route
from penstock.pipeline.remote import Remote, Server
from penstock.pipeline.session import spark_session

#: A queue that is created only after the messages were published.
LATE = "topic = 'orders' AND country = 'FR' AND amount >= 200"
AGAIN = "topic = 'refunds' AND country = 'ES'"
#: Where the report is written.
REPORT = Path("demo-report")


def run_pipeline(folder: str) -> list[str]:
    """Run the jobs on the store in ``folder``; returns what does not add up."""
    problems: list[str] = []
    with serving(f"rocksdb:{folder}/store") as url:
        server = Server(url)
        spark = spark_session("demo", master="local[2]", settings={"spark.ui.enabled": "false"})
        options = JobOptions(server=server, lake=f"{folder}/lake")

        def run(name: str, job: Job) -> Summary:
            context = JobContext(options, run=f"demo-{name}", job=name, spark=spark)
            try:
                summary = run_job(job, context)
            finally:
                context.close()
            print(f"{name:8} " + ", ".join(f"{key} {value}" for key, value in summary.items()))
            return summary

        try:
            with server.open() as remote:
                problems += _jobs(run, remote)
        finally:
            spark.stop()
    print(f"\nthe report: {(REPORT / 'index.html').resolve()}")
    return problems


def _jobs(run: Any, remote: Remote) -> list[str]:
    archived = run("archive", archive)
    would = remote.ask(lambda q: q.preview(LATE))
    remote.ask(lambda q: q.create_queue("late", LATE, start="earliest"))
    run("route", lambda context: route(context, queues=("late",)))
    remote.ask(lambda q: q.route("late"))
    waiting = remote.ask(lambda q: q.stats("late")).available
    remote.ask(lambda q: q.create_queue("again", "topic = 'again'"))
    replayed = run(
        "replay",
        lambda context: replay(
            context, source="lake", where=AGAIN, topic="again", replay_id="demo"
        ),
    )
    published = remote.ask(lambda q: q.stats("again")).available
    run("report", lambda context: report(context, output=str(REPORT)))
    problems = []
    if waiting != would.count:
        problems.append(f"late has {waiting} of the {would.count} messages that match")
    if published != replayed["replayed"] or not published:
        problems.append(f"{published} messages came of a replay of {replayed['replayed']}")
    if archived["entries"] != archived["through"]:
        problems.append(f"{archived['entries']} entries are archived of {archived['through']}")
    return problems


@contextmanager
def serving(store: str) -> Iterator[str]:
    """Run ``penstock serve`` on the store while the block runs; yields its URL."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "penstock", "serve", "--store", store, "--port", "0", "--json"),
            *("--routing", "pipeline"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    off = run_pipeline(sys.argv[1])
    for problem in off:
        print(f"off: {problem}")
    sys.exit(1 if off else 0)
