"""A job in a process of its own, on a JVM that outlives it, and its death at a chosen step.

The process is what ``penstock pipeline`` runs: the driver of the job. It attaches to a JVM that has
started already, so that a kill costs two seconds instead of fifteen. A step is a call of the broker
(before and after it) or a change of a file below the work folder; at the chosen one the process
sends SIGKILL to Spark's Python workers and to itself. The caller then cancels Spark's tasks, and
may kill the process at a moment of its own choice.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from penstock.pipeline.context import JobContext, JobOptions, Silent, Summary
from penstock.pipeline.jobs.job import run_job
from penstock.pipeline.remote import Remote, Server
from penstock.testing.clock import FakeClock

__all__ = ["Gateway", "Order", "perform", "workers"]

#: Audit events that change a file, with the position of the path among their arguments.
_CHANGES: Final = {
    "os.rename": 0,
    "os.remove": 0,
    "os.link": 1,
    "os.mkdir": 0,
    "os.rmdir": 0,
    "shutil.rmtree": 0,
}
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Gateway(Struct, frozen=True):
    """How to attach to the JVM."""

    port: int
    secret: str
    pid: int


class Order(Struct, frozen=True, kw_only=True):
    """What a child is to do."""

    job: Callable[..., Summary]
    name: str
    run: str
    url: str
    now_ms: int
    folder: str
    """Changes of files below it are steps."""
    lake: str | None = None
    options: Mapping[str, Any] = {}
    kill_at: int | None = None
    """The step at which the process dies; None: it is not killed by itself."""


class _Notes(Silent):
    """Shows why a flow starts again."""

    def note(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")


def perform(order: Order, gateway: Gateway, steps: Synchronized[int]) -> None:
    """Run the job; the entry point of the process."""
    os.setsid()
    context = JobContext(
        JobOptions(server=Server(order.url), lake=order.lake, interval_s=0.1),
        run=order.run,
        job=order.name,
        clock=FakeClock(order.now_ms),
        spark=_attach(gateway),
        watcher=_Notes(),
    )
    _count(order, gateway, steps)
    run_job(lambda found: order.job(found, **order.options), context)
    # Neither Spark nor the heartbeat is ended in order: the process is gone.
    os._exit(0)


def _attach(gateway: Gateway) -> Any:
    """The session of the JVM."""
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    java: Any = launch_gateway()  # type: ignore[no-untyped-call]
    scala = java.jvm.org.apache.spark.SparkContext.getOrCreate()
    conf = SparkConf(_jvm=java.jvm, _jconf=scala.getConf())
    context = SparkContext(gateway=java, jsc=java.jvm.JavaSparkContext(scala), conf=conf)
    return SparkSession(context)


def _count(order: Order, gateway: Gateway, steps: Synchronized[int]) -> None:
    """Count steps from now on, and die at the chosen one."""
    lock = threading.Lock()

    def step() -> None:
        with lock:
            steps.value += 1
            if steps.value == order.kill_at:
                for pid in workers(gateway.pid):
                    _kill(pid)
                os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and flags & _WRITES
        else:
            position = _CHANGES.get(event)
            changes, path = position is not None, arguments[position] if position else None
            if position == 0:
                path = arguments[0]
        if not changes or not isinstance(path, str | bytes | os.PathLike):
            return
        if os.fsdecode(path).startswith(order.folder):
            step()

    ask = Remote.ask

    def counted(remote: Remote, call: Callable[[Any], Awaitable[Any]]) -> Any:
        step()
        found = ask(remote, call)
        step()
        return found

    Remote.ask = counted  # type: ignore[assignment,method-assign]
    sys.addaudithook(audit)


def workers(jvm: int) -> list[int]:
    """Spark's Python workers. The daemons that fork them are the JVM's children, and part of it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    return [worker for daemon in parents.get(jvm, []) for worker in parents.get(daemon, [])]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
