"""The Celery application that producers call and ``celery worker`` runs; one task, which checks.

The environment says where the broker is and, for a worker, where the probe is.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, Final

from celery import Celery
from celery.signals import worker_ready

from bench.peers.probe import Probe

__all__ = ["BROKER", "PROBE", "app", "handle"]

BROKER: Final = "PENSTOCK_BENCH_BROKER"
PROBE: Final = "PENSTOCK_BENCH_PROBE"
#: Connections of a producer process, one per thread.
_CONNECTIONS: Final = 64

app = Celery("bench", broker=os.environ.get(BROKER, "memory://"))
app.conf.update(
    task_ignore_result=True,
    # A task that was not handled is run again, as with the other peers.
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=_CONNECTIONS,
    worker_hijack_root_logger=False,
)


@app.task(name="bench.handle")  # type: ignore[untyped-decorator]
def handle(text: str) -> None:
    """Check a message. Celery acks it when this returns."""
    probe = _probe()
    probe.settle([probe.receive(text.encode())])


@cache
def _probe() -> Probe:
    return Probe(Path(os.environ[PROBE]))


@worker_ready.connect  # type: ignore[untyped-decorator]
def _announce(**_: Any) -> None:
    _probe().add_ready()
