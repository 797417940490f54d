"""On a cluster, a master and two workers: jobs give what ``local[2]`` gives, and a task that runs
twice at once, because Spark lost timeouts with it, publishes each row once (P4).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from penstock import NewMessage
from penstock.pipeline.context import Summary
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.route import route
from penstock.testing.laws import law
from tests.pipeline import jobs
from tests.pipeline.cluster import Cluster
from tests.pipeline.hosted import Hosted
from tests.pipeline.speculation_program import PADDING, PARTITIONS, ROWS

pytestmark = pytest.mark.slow

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def job(server: Hosted, master: str, *words: str) -> dict[str, Any]:
    """Run a job as a person would; its summary."""
    conf = [part for item in SETTINGS.items() for part in ("--conf", "=".join(item))]
    return run(
        *("penstock", "pipeline", *words),
        *("--url", server.url, "--master", master, "--json", *conf),
    )


def run(*words: str) -> dict[str, Any]:
    """Run a module in a process of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def archived(lake: Path) -> pd.DataFrame:
    return pd.read_parquet(lake / "messages").sort_values("offset").reset_index(drop=True)


def test_route_and_archive_give_what_they_give_on_one_machine(
    spark: SparkSession, server: Hosted, cluster: Cluster, tmp_path: Path
) -> None:
    for topic in ("orders", "alerts"):
        server.publish(
            topic,
            *[NewMessage(b"%d" % n, headers={"n": n}, priority=n % 10) for n in range(400)],
        )
    claims: list[list[bytes]] = []
    summaries: list[dict[str, Any]] = []
    before = cluster.hosts()
    far, here = tmp_path / "lake-cluster", tmp_path / "lake-local"

    def both(routing: Callable[[], Summary], archiving: Callable[[], Summary]) -> None:
        server.ask(lambda q: q.create_queue("some", "n % 3 = 0", start="earliest"))
        summary = routing()
        assert server.ask(lambda q: q.route("some")).cursor is None
        claims.append([d.payload for d in server.claim("some", 1_000)])
        server.ask(lambda q: q.delete_queue("some"))
        summaries.append({**summary, **archiving()})

    both(
        lambda: job(server, cluster.url, "route", "some"),
        lambda: job(server, cluster.url, "archive", "--lake", str(far)),
    )
    both(
        lambda: jobs.run(server, spark, route, run="route", queues=("some",)),
        lambda: jobs.run(server, spark, archive, run="archive", lake=here),
    )
    assert claims[0] == claims[1]
    assert len(claims[0]) == 2 * 134
    for name in ("assigned", "scanned", "entries", "payload_bytes", "through"):
        assert summaries[0][name] == summaries[1][name]
    pd.testing.assert_frame_equal(archived(far), archived(here))
    assert len(archived(far)) == 800
    # Both jobs ran on both workers.
    assert list((cluster.hosts() - before).values()) == [2, 2]


# In the process of the test above, which has the cluster.
@law("P4")
@pytest.mark.usefixtures("spark")
def test_a_task_and_its_speculative_copy_publish_each_row_once(
    server: Hosted, cluster: Cluster, tmp_path: Path
) -> None:
    summary = run(
        "tests.pipeline.speculation_program",
        *(cluster.url, server.url, str(tmp_path), json.dumps(SETTINGS)),
    )
    assert [one["speculative"] for one in summary["attempts"]] == [False, True], summary
    first, copy = summary["attempts"]
    assert first["host"] != copy["host"]
    assert (first["end"] == "Success", copy["end"]) == (False, "Success")
    assert cluster.hosts()[summary["app"]] == 2
    # Both were at work at once, and both had published when there was more for either to do.
    said, rows = summary["said"], PARTITIONS * ROWS
    assert rows - ROWS < said["first has published"] < said["copy has published"]
    assert said["copy has published"] <= said["first goes on"] < rows
    assert server.payloads("t") == Counter(f"{n}{PADDING}".encode() for n in range(rows))
