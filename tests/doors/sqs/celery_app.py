"""A Celery application on SQS: its tasks report to the test over a Unix socket."""

from __future__ import annotations

import os
import signal
import socket

from celery import Celery

app = Celery(
    "door",
    broker=os.environ["BROKER"],
    broker_transport_options={
        "region": "us-east-1",
        "queue_name_prefix": "celery_",
        "visibility_timeout": 3,
        "wait_time_seconds": 1,
        "polling_interval": 0.05,
    },
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=4,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
)


def report(text: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), os.environ["REPORTS"])


@app.task
def add(first: int, second: int) -> None:
    report(f"add {first + second}")


@app.task(bind=True, max_retries=2)
def flaky(self) -> None:
    report(f"flaky {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)


@app.task
def stuck() -> None:
    """Never ends the first time: its worker is killed, and the message becomes visible again."""
    report(f"stuck {os.getppid()}")
    if os.environ.get("STUCK"):
        signal.pause()
