"""The same jobs on a cluster: a master and two workers give what ``local[2]`` gives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from penstock import NewMessage
from tests.pipeline.cluster import Cluster
from tests.pipeline.hosted import Hosted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def job(server: Hosted, master: str, *words: str) -> dict[str, Any]:
    """Run a job as a person would; its summary."""
    conf = [part for item in SETTINGS.items() for part in ("--conf", "=".join(item))]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock", "pipeline", *words),
            *("--url", server.url, "--master", master, "--json", *conf),
        ],
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
    server: Hosted, cluster: Cluster, tmp_path: Path
) -> None:
    for topic in ("orders", "alerts"):
        server.publish(
            topic,
            *[NewMessage(b"%d" % n, headers={"n": n}, priority=n % 10) for n in range(400)],
        )
    claims: list[list[bytes]] = []
    summaries: list[dict[str, Any]] = []
    lakes = [tmp_path / "lake-cluster", tmp_path / "lake-local"]
    for master, lake in zip((cluster.url, "local[2]"), lakes, strict=True):
        server.ask(lambda q: q.create_queue("some", "n % 3 = 0", start="earliest"))
        summary = job(server, master, "route", "some")
        assert server.ask(lambda q: q.route("some")).cursor is None
        claims.append([d.payload for d in server.claim("some", 1_000)])
        server.ask(lambda q: q.delete_queue("some"))
        archive = job(server, master, "archive", "--lake", str(lake))
        summaries.append({**summary, **archive})
    assert claims[0] == claims[1]
    assert len(claims[0]) == 2 * 134
    for name in ("assigned", "scanned", "entries", "payload_bytes", "through"):
        assert summaries[0][name] == summaries[1][name]
    pd.testing.assert_frame_equal(archived(lakes[0]), archived(lakes[1]))
    assert len(archived(lakes[0])) == 800
    assert cluster.executors() == 2
