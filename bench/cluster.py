"""Jobs over many messages on a cluster of two workers, whose executors are killed meanwhile.

A route, an archive, a report and a flow run as people run them, with ``--master``, on a standalone
cluster of this machine, with speculative execution. A killed executor loses the tasks that it runs.
What the jobs left is counted independently: deliveries by the broker, rows by DuckDB. The memory is
that of the job's own processes at their largest: the driver with its JVM, and each executor.
``python -m bench.cluster --messages 10000000`` takes about an hour.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import duckdb
import msgspec
from deltalake import DeltaTable

from bench.measuring import scratch
from bench.peers.cost import memory_bytes
from bench.processes import free_port, penstock_server
from penstock import NewMessage
from penstock.pipeline.remote import Server
from tests.pipeline.cluster import Cluster

MESSAGES: Final = 10_000_000
_BATCH: Final = 5_000
_TOPICS: Final = 4
#: The routed queue takes one message of so many.
_ROUTED: Final = 10
#: Of a micro-batch: they pass through the driver.
_BATCH_ROWS: Final = 50_000
_JOBS: Final = ("route", "archive", "report", "flow")
_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.speculation": "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}
_FLOW: Final = """\
from penstock.pipeline import Flow


def numbers(rows):
    return rows.selectExpr("id", "CAST(get_json_object(CAST(value AS string), '$.n') AS long) AS n")


to_table = Flow(
    name="to-table", consume="all", transform=numbers, table={table!r}, batch_rows={rows}
)
"""


class _Watch:
    """Measures the memory of a job's processes, and kills an executor every so often."""

    def __init__(self, cluster: Cluster, driver: int, kill_every_s: float | None) -> None:
        self._workers = cluster.pids[1:]
        self._driver = driver
        self._kill_every_s = kill_every_s
        self._chance = random.Random(7)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.killed = 0
        self.driver_mb = self.executor_mb = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        killed_at = time.monotonic()
        while not self._ended.wait(1.0):
            executors = [pid for worker in self._workers for pid in _executors(worker)]
            self.driver_mb = max(self.driver_mb, memory_bytes([self._driver]) >> 20)
            self.executor_mb = max(
                [self.executor_mb, *(memory_bytes([pid]) >> 20 for pid in executors)]
            )
            every = self._kill_every_s
            if every is not None and executors and time.monotonic() - killed_at > every:
                killed_at = time.monotonic()
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(executors), signal.SIGKILL)
                    self.killed += 1


def _executors(worker: int) -> list[int]:
    """The processes that a worker has started; there are none if it has ended."""
    with suppress(OSError):
        lists = Path(f"/proc/{worker}/task").glob("*/children")
        return [int(pid) for one in lists for pid in one.read_text().split()]
    return []


class _Scale:
    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        master: str | None,
        url: str,
        messages: int,
        kill_every_s: float | None,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._master = master or cluster.url
        self._url = url
        self._messages = messages
        self._kill_every_s = kill_every_s

    def run(self, jobs: Sequence[str]) -> None:
        """Publish, then the jobs in turn; raises if a row is missing or there twice."""
        self._publish()
        for job in jobs:
            getattr(self, f"_{job}")()

    def _route(self) -> None:
        with Server(self._url).open() as remote:
            remote.ask(lambda q: q.create_queue("routed", f"n % {_ROUTED} = 0", start="earliest"))
        self._job("route", "pipeline", "route", "routed")
        self._count("deliveries", self._deliveries("routed"), self._messages // _ROUTED)

    def _archive(self) -> None:
        lake = self._folder / "lake"
        self._job("archive", "pipeline", "archive", "--lake", str(lake))
        self._count_rows("archived rows", lake / "messages", '"offset"')

    def _report(self) -> None:
        report = ("--lake", str(self._folder / "lake"), "--output", str(self._folder / "report"))
        self._job("report", "pipeline", "report", *report)

    def _flow(self) -> None:
        flow, table = self._folder / "flow.py", self._folder / "table"
        flow.write_text(_FLOW.format(table=str(table), rows=_BATCH_ROWS))
        checkpoints = ("--checkpoints", str(self._folder / "checkpoints"))
        self._job("flow", "flow", "apply", str(flow), "--once", *checkpoints)
        self._count_rows("rows of the flow", table, "n")
        self._count("left in its queue", self._deliveries("all"), 0)

    def _publish(self) -> None:
        begin = time.monotonic()
        with Server(self._url).open() as remote:
            remote.ask(lambda q: q.create_queue("all", "TRUE"))
            for done in range(0, self._messages, _BATCH):
                batch = [
                    NewMessage(_document(n), {"n": n})
                    for n in range(done, min(done + _BATCH, self._messages))
                ]
                topic = f"orders-{done // _BATCH % _TOPICS}"
                remote.ask(lambda q, t=topic, b=batch: q.publish_batch(t, b))  # type: ignore[misc]
        _say(f"published {self._messages:,} messages in {time.monotonic() - begin:.0f} s")

    def _job(self, name: str, *words: str) -> None:
        """Run a job as a person would, and say how it went."""
        settings = _SETTINGS | self._cluster.settings
        conf = [part for item in settings.items() for part in ("--conf", "=".join(item))]
        command = [sys.executable, "-m", "penstock", *words, "--url", self._url]
        command += ["--master", self._master, *conf]
        log = self._folder / f"{name}.log"
        begin = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            with _Watch(self._cluster, process.pid, self._kill_every_s) as watch:
                code = process.wait()
        seconds = time.monotonic() - begin
        if code:
            raise AssertionError(f"{name} ended with {code}:\n{log.read_text()[-4_000:]}")
        _say(
            f"{name}: {seconds:.0f} s, {self._messages / seconds:,.0f} messages/s; memory of the "
            f"driver {watch.driver_mb} MB, of an executor {watch.executor_mb} MB; "
            f"{watch.killed} executors killed"
        )

    def _deliveries(self, queue: str) -> int:
        with Server(self._url).open() as remote:
            stats: Any = remote.ask(lambda q: q.stats(queue))
        waiting: int = stats.available
        return waiting

    def _count_rows(self, what: str, table: Path, key: str) -> None:
        files = DeltaTable(table).file_uris()
        query = f"SELECT count(*), count(DISTINCT {key}) FROM read_parquet(?)"
        row = duckdb.execute(query, [files]).fetchone()
        assert row is not None
        self._count(what, row[0], self._messages)
        self._count(f"{what}, different ones", row[1], self._messages)

    def _count(self, what: str, found: int, wanted: int) -> None:
        _say(f"  {what}: {found:,} of {wanted:,}")
        if found != wanted:
            raise AssertionError(f"{what}: {found:,} instead of {wanted:,}")


def _document(number: int) -> bytes:
    return msgspec.json.encode(
        {"n": number, "customer": f"customer-{number % 9973}", "amount": number % 1000 / 10}
    )


@contextmanager
def _cluster(folder: Path, master: str | None) -> Iterator[Cluster]:
    """A cluster, started unless another master is used."""
    folder.mkdir()
    cluster = Cluster(folder, memory="2g", shuffle_port=free_port())
    try:
        yield cluster if master else cluster.start()
    finally:
        cluster.stop()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything; an error says what is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--kill-every", type=float, metavar="SECONDS", help="executors")
    parser.add_argument(
        "--job", action="append", choices=_JOBS, help="only this one; the report needs the archive"
    )
    parser.add_argument("--master", metavar="URL", help="such as local[*], instead of a cluster")
    given = parser.parse_args(arguments)
    with (
        scratch() as folder,
        penstock_server(folder, "--routing", "pipeline") as served,
        _cluster(folder / "cluster", given.master) as cluster,
    ):
        scale = _Scale(folder, cluster, given.master, served.url, given.messages, given.kill_every)
        scale.run(given.job or _JOBS)


if __name__ == "__main__":
    main()
