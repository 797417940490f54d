"""Celery with its SQS transport, unchanged: a real worker takes tasks through the door."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from tests.doors.sqs.conftest import Signed
from tests.doors.sqs.scenario import attributes
from tests.service.serving import surroundings

WAIT_S = 60
COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


class Workers:
    """Starts workers, and hears their tasks."""

    def __init__(self, signed: Signed, folder: Path) -> None:
        self.reports = folder / "reports"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.reports))
        self._socket.settimeout(WAIT_S)
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        key, server = signed.key, signed.server
        self.environ = {
            **surroundings(),
            "BROKER": f"sqs://{key.access}:{key.secret}@{server.host}:{server.port}",
            "REPORTS": str(self.reports),
            "PYTHONPATH": str(Path(__file__).parent),
        }

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"worker-{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "celery_app", "worker"),
                    *("--concurrency=2", "--without-gossip", "--without-mingle"),
                    "--without-heartbeat",
                ],
                env={**self.environ, **more},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def hear(self, *reports: str) -> None:
        """Wait for these. Some come twice: a busy machine outlasts a visibility timeout."""
        missing = set(reports)
        while missing:
            try:
                missing.discard(self._socket.recv(1_000).decode())
            except TimeoutError:
                logs = sorted(self._folder.glob("*.log"))
                text = "\n".join(log.read_text() for log in logs)
                raise AssertionError(f"no report of {missing}:\n{text}") from None

    def end(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._socket.close()


@pytest.fixture
def workers(signed: Signed, tmp_path: Path) -> Iterator[Workers]:
    started = Workers(signed, tmp_path)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def send(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sends a task by name."""
    for name in ("BROKER", "REPORTS"):
        monkeypatch.setenv(name, workers.environ[name])
    from tests.doors.sqs.celery_app import app

    def sent(name: str, *arguments: object, **options: object) -> None:
        app.send_task(f"celery_app.{name}", arguments, **options)

    with app.connection_for_write():
        yield sent
    app.close()


def test_a_celery_worker(signed: Signed, workers: Workers, send: Callable[..., None]) -> None:
    worker = workers.start(STUCK="1")
    for n in range(20):
        send("add", n, n)
    workers.hear(*(f"add {2 * n}" for n in range(20)))
    send("flaky")
    for n in range(3):
        workers.hear(f"flaky {n}")
    # With an ETA the worker holds the message until then.
    send("add", 1, 0, countdown=0.5)
    workers.hear("add 1")
    send("stuck")
    workers.hear(f"stuck {worker.pid}")
    os.killpg(worker.pid, signal.SIGKILL)
    # Its message becomes visible again, for another worker.
    second = workers.start()
    workers.hear(f"stuck {second.pid}")
    # Celery acks a task after it has reported.
    sqs = signed.client()
    (url,) = sqs.list_queues(QueueNamePrefix="celery_")["QueueUrls"]
    deadline = monotonic() + WAIT_S
    while any(int(attributes(sqs, url)[name]) for name in COUNTS):
        assert monotonic() < deadline
