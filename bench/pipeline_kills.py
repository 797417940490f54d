"""Killing the archiver: compares the lake after ten kills with one from an undisturbed run.

``penstock pipeline archive`` runs in a separate process group, killed by SIGKILL at a randomly
chosen change of the lake's files: while a file is written, before or after one is moved into place,
during a commit, or during compaction. A last run completes the lake. The comparison at the end
covers every entry with the hash of its payload, as a plain Parquet reader finds them.
``python -m bench.pipeline_kills --messages 100000`` runs it alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, Self

from deltalake import DeltaTable

from bench.measuring import Figure, scratch
from bench.pipeline_lake import archive_once, publish_documents
from bench.processes import penstock_server
from bench.spark import bench_session
from penstock.pipeline.remote import Server

__all__ = ["killing"]

MESSAGES: Final = 1_000_000
KILLS: Final = 10
#: Commits of an undisturbed run, if each has at least ``_LEAST_STEP`` messages.
_STEPS: Final = 8
_LEAST_STEP: Final = 1_000
#: Seconds between two polls of the files.
_LOOK_S: Final = 0.005
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}


def killing(messages: int, kills: int = KILLS) -> Figure:
    """Entries that are the same in both lakes, as a share of those in either."""
    step = max(_LEAST_STEP, messages // _STEPS)
    with (
        scratch() as folder,
        penstock_server(folder) as served,
        bench_session(folder) as spark,
    ):
        publish_documents(served.url, messages)
        server, undisturbed = Server(served.url), folder / "undisturbed"
        with _Changes(undisturbed) as changes:
            archive_once(spark, server, undisturbed, "undisturbed", step)
        chance = random.Random(7)
        lake = folder / "killed"
        died = 0
        while died < kills:
            if _kill(served.url, lake, step, after=chance.randint(1, changes.count)):
                died += 1
            else:
                # It finished before it could be killed: start over.
                lake = folder / f"killed-{died}"
        archive_once(spark, server, lake, "last", step)
        expected, found = _entries(undisturbed), _entries(lake)
    alike = len(expected & found)
    if len(expected) != messages:
        raise AssertionError(f"{len(expected)} entries were archived of {messages}")
    return Figure(
        f"entries of a lake whose archiver was killed {kills} times, against one in peace",
        alike / len(expected | found),
        1.0,
        f"{len(found):,}",
        f"{len(expected):,}",
    )


def _kill(url: str, lake: Path, step: int, after: int) -> bool:
    """Run the archiver until so many changes of its files; returns whether it was killed."""
    settings = [word for item in _SETTINGS.items() for word in ("--conf", "=".join(item))]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "penstock", "pipeline", "archive", "--no-history"),
            *("--url", url, "--master", "local[2]", "--step", str(step), *settings),
            *("--lake", str(lake)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with _Changes(lake) as changes:
            while process.poll() is None and changes.count < after:
                time.sleep(_LOOK_S)
    finally:
        is_killed = process.poll() is None
        if is_killed:
            os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate()
    if process.returncode and not is_killed:
        raise AssertionError(f"the archiver ended with {process.returncode}: {said[-2000:]}")
    return is_killed


class _Changes:
    """Counts files that come and go in a folder, on a thread, until the end of the block."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self._folder = folder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen = _files(self._folder)
        while not self._is_over.wait(_LOOK_S):
            now = _files(self._folder)
            self.count += len(now ^ seen)
            seen = now


def _files(lake: Path) -> set[str]:
    found: set[str] = set()
    for folder, _, names in os.walk(lake):
        found.update(f"{folder}/{name}" for name in names)
    return found


def _entries(lake: Path) -> set[tuple[int, bytes]]:
    """Offset and hash of every entry; raises if one occurs twice."""
    found: set[tuple[int, bytes]] = set()
    rows = 0
    # By the Delta log: files that a compaction replaced are there until a vacuum.
    messages = DeltaTable(lake / "messages").to_pyarrow_dataset()
    for batch in messages.to_batches(columns=["offset", "value"]):
        rows += batch.num_rows
        offsets = batch.column("offset").to_pylist()
        values = batch.column("value").to_pylist()
        found.update(
            (offset, hashlib.blake2b(value, digest_size=16).digest())
            for offset, value in zip(offsets, values, strict=True)
        )
    if rows != len(found):
        raise AssertionError(f"{rows - len(found)} entries are there twice")
    return found


def main() -> int:
    """Exit 1 if an entry is missing or different."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline_kills", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--kills", type=int, default=KILLS)
    arguments = parser.parse_args()
    figure = killing(arguments.messages, arguments.kills)
    sys.stdout.write(f"{figure.ratio:6.3f}  {figure.name}  [{figure.ours} : {figure.reference}]\n")
    return 0 if figure.holds else 1


if __name__ == "__main__":
    sys.exit(main())
