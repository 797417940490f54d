"""The heartbeat of a job: stores its run record repeatedly, so that a killed job is noticed.

A job that has no progress to report for long (one large Spark stage, for example) is still
running. A job that was killed stops its heartbeat, and the broker shows its run as lost.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from msgspec.structs import replace

from penstock.errors import PenstockError
from penstock.model.clock import Clock
from penstock.model.runs import RUN_HEARTBEAT_MS, Run
from penstock.pipeline.remote import Server

__all__ = ["Heartbeat"]

_log: Final = logging.getLogger(__name__)


class Heartbeat:
    """Stores the given run record at intervals until closed, in a thread with its own
    connection."""

    def __init__(self, server: Server, clock: Clock, every_ms: int = RUN_HEARTBEAT_MS) -> None:
        self.run: Run | None = None
        """The record to store; the job replaces it when it makes progress."""
        self._server = server
        self._clock = clock
        self._every_s = every_ms / 1000
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="penstock.heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop storing."""
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._every_s):
            if self.run is None:
                continue
            run = replace(self.run, updated_at=self._clock.now())
            try:
                with self._server.open() as remote:
                    remote.ask(lambda q, run=run: q.put_run(run))  # type: ignore[misc]
            except PenstockError as error:
                # The job itself will hit and report the same error.
                _log.warning("The run was not recorded: %s", error)
