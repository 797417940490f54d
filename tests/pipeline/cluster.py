"""A Spark cluster of this machine: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyspark

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_PATIENCE_S = 90


class Cluster:
    """From ``start`` to ``stop``; ``url`` is its master's."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> Cluster:
        master = self._launch(
            "master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        self.url = self._wait_for(master, _MASTER)
        for number in range(self._workers):
            name = f"worker-{number}"
            log = self._launch(
                name,
                "worker.Worker",
                *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(self._folder / name)),
                self.url,
            )
            self._wait_for(log, re.compile(r"(Successfully registered) with master"))
        return self

    def _launch(self, name: str, kind: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind}", *arguments],
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    def _wait_for(self, log: Path, wanted: re.Pattern[str]) -> str:
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            found = wanted.search(log.read_text(errors="replace"))
            if found:
                return found[1]
            assert all(process.poll() is None for process in self._processes), log.read_text()
            time.sleep(0.2)
        raise AssertionError(f"{log.name} does not say {wanted.pattern!r}:\n{log.read_text()}")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)

    def executors(self) -> int:
        """Workers that ran something."""
        return sum(
            any((self._folder / f"worker-{number}").glob("app-*/*"))
            for number in range(self._workers)
        )
