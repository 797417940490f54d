"""A Spark cluster of this machine: a master and two workers, each a process of its own.

Each worker has an address of its own: Spark runs the copy of a slow task on another host only. With
a shuffle port the first worker serves what executors of both have written for others, so that it
outlives them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyspark

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_PATIENCE_S = 90


class Cluster:
    """From ``start`` to ``stop``; ``url`` is its master's."""

    def __init__(
        self, folder: Path, workers: int = 2, memory: str = "1g", shuffle_port: int = 0
    ) -> None:
        self._folder = folder
        self._workers = workers
        self._memory = memory
        self._shuffle_port = shuffle_port
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> Cluster:
        master = self._launch("master", "master.Master", "127.0.0.1", "--port", "0")
        self.url = self._wait_for(master, _MASTER)
        for number in range(self._workers):
            name = f"worker-{number}"
            log = self._launch(
                name,
                "worker.Worker",
                f"127.0.0.{number + 1}",
                *("--cores", "1", "--memory", self._memory),
                *("--work-dir", str(self._folder / name)),
                self.url,
            )
            self._wait_for(log, re.compile(r"(Successfully registered) with master"))
        return self

    @property
    def settings(self) -> dict[str, str]:
        """What an application has to set to use it."""
        if not self._shuffle_port:
            return {}
        port = str(self._shuffle_port)
        return {"spark.shuffle.service.enabled": "true", "spark.shuffle.service.port": port}

    def _launch(self, name: str, kind: str, host: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind}"]
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        if name == "worker-0":
            options = [f"-D{key}={value}" for key, value in self.settings.items()]
            environment["SPARK_WORKER_OPTS"] = " ".join(options)
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--host", host, "--webui-port", "0", *arguments],
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

    @property
    def pids(self) -> list[int]:
        """The master, and the workers; executors are children of their worker."""
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)

    def hosts(self) -> Counter[str]:
        """By application, how many workers ran something of it."""
        return Counter(
            app.name
            for number in range(self._workers)
            for app in (self._folder / f"worker-{number}").glob("app-*")
            if _has_files(app)
        )


def _has_files(folder: Path) -> bool:
    """Whether there is anything in it; a worker may remove it at any moment."""
    try:
        return any(folder.iterdir())
    except FileNotFoundError:
        return False
