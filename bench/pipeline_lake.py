"""The lake: its size, and the rate of verified archiving against reading alone.

Archiving reads the metadata of every entry, then everything, writes it, reads it back and hashes
every payload again; reading alone goes to Spark's ``noop`` sink. Payloads are distinct JSON
documents of about a kilobyte. ``python -m bench.pipeline_lake --messages 100000`` runs it alone.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from bench.measuring import PAYLOAD_BYTES, Figure, middle, per_second, scratch
from bench.processes import penstock_server
from bench.spark import bench_session
from penstock import NewMessage
from penstock.pipeline.context import JobContext, JobOptions, Summary
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.job import run_job
from penstock.pipeline.remote import Server
from penstock.pipeline.tables import read_table

__all__ = ["archive_once", "archiving", "publish_documents"]

MESSAGES: Final = 1_000_000
_BATCH: Final = 5_000
_TEXT: Final = (
    "order customer invoice address street city country amount currency payment delivery item "
    "quantity price discount note warehouse carrier tracking number returned accepted"
)


def archiving(messages: int, rounds: int) -> list[Figure]:
    """Bytes of the lake per byte of payload; entries per second against reading alone."""
    with scratch() as folder, penstock_server(folder) as served:
        publish_documents(served.url, messages)
        with bench_session(folder) as spark:
            return _measure(spark, Server(served.url), folder / "lake", messages, rounds)


def _measure(
    spark: SparkSession, server: Server, lake: Path, messages: int, rounds: int
) -> list[Figure]:
    read: list[float] = []
    archived: list[float] = []
    summary: Summary = {}
    _read(spark, server)  # Starts the worker processes.
    for number in range(rounds):
        shutil.rmtree(lake, ignore_errors=True)
        read.append(messages / _read(spark, server))
        begin = time.perf_counter()
        summary = archive_once(spark, server, lake, f"run-{number}")
        archived.append(messages / (time.perf_counter() - begin))
        if summary["entries"] != messages:
            raise AssertionError(f"{summary['entries']} entries were archived of {messages}")
    files = sum(path.stat().st_size for path in lake.rglob("*") if path.is_file())
    payload = int(summary["payload_bytes"])
    return [
        Figure(
            "all bytes of the lake, against bytes of payload",
            files / payload,
            0.6,
            f"{files / 1e6:.0f} MB",
            f"{payload / 1e6:.0f} MB",
            at_most=True,
        ),
        Figure(
            f"{messages:,} messages of 1 KiB archived and verified, against reading alone",
            middle(archived) / middle(read),
            0.15,
            per_second(middle(archived)),
            per_second(middle(read)),
        ),
    ]


def _read(spark: SparkSession, server: Server) -> float:
    begin = time.perf_counter()
    read_table(spark, server, "log").write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def archive_once(
    spark: SparkSession, server: Server, lake: Path, run: str, step: int | None = None
) -> Summary:
    """Archive what is new, in a run of that name."""
    options = JobOptions(server=server, lake=str(lake))
    context = JobContext(options, run=run, job="archive", spark=spark)
    try:
        return run_job(lambda one: archive(one, history=False, tell=False, step=step), context)
    finally:
        context.close()


def publish_documents(url: str, messages: int) -> None:
    """Publish orders to four topics."""
    chance = random.Random(1)
    with Server(url).open() as remote:
        remote.ask(lambda q: q.create_queue("nothing", "FALSE"))
        for done in range(0, messages, _BATCH):
            part = [
                NewMessage(_document(chance, number), {"country": chance.choice("ABCD")})
                for number in range(done, min(done + _BATCH, messages))
            ]
            topic = f"orders-{done // _BATCH % 4}"
            remote.ask(
                lambda q, topic=topic, part=part: q.publish_batch(topic, part)  # type: ignore[misc]
            )


def _document(chance: random.Random, number: int) -> bytes:
    """An order of about a kilobyte: repeating names, distinct numbers and words."""
    order: dict[str, object] = {
        "id": f"{chance.getrandbits(64):016x}",
        "number": number,
        "customer": f"{chance.getrandbits(48):012x}",
        "placed_at": 1_700_000_000_000 + number,
        "items": [
            {"sku": f"{chance.getrandbits(32):08x}", "price": chance.randrange(10**6) / 100}
            for _ in range(6)
        ],
    }
    left = PAYLOAD_BYTES - len(json.dumps(order)) - 12
    words = " ".join(chance.choices(_TEXT.split(), k=left // 6))
    return json.dumps({**order, "note": words[:left]}).encode()


def main() -> int:
    """Exit 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline_lake", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=3, help="a figure is the median of these")
    arguments = parser.parse_args()
    figures = archiving(arguments.messages, arguments.rounds)
    for figure in figures:
        bound = "at most" if figure.at_most else "at least"
        sys.stdout.write(
            f"{figure.ratio:6.2f}  ({bound} {figure.target:.2f})  {figure.name}"
            f"  [{figure.ours} : {figure.reference}]\n"
        )
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
