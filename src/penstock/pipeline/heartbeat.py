"""The heartbeat of a job: its run is recorded again and again, so that a killed job is noticed.

A job that works for long without progress to report (one large Spark stage, say) is still
running. A job that was killed says nothing more, and the broker shows its run as lost.
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
    """Records the run that it is given until it is closed, in a thread and on a connection of
    its own."""

    def __init__(self, server: Server, clock: Clock, every_ms: int = RUN_HEARTBEAT_MS) -> None:
        self.run: Run | None = None
        """What is recorded; set anew when there is news."""
        self._server = server
        self._clock = clock
        self._every_s = every_ms / 1000
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="penstock.heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Record nothing more."""
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
                # The job itself meets the same error, and says so.
                _log.warning("The run was not recorded: %s", error)
