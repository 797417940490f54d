"""The part of the public API that pipeline jobs use: writes of many batches, and their runs."""

from __future__ import annotations

from typing import Protocol

from penstock.model.runs import Run, StoredReport
from penstock.model.server_settings import ServerSettings
from penstock.model.writes import Write

__all__ = ["JobApi"]


class JobApi(Protocol):
    """The verbs that record what a job has done."""

    # -- writes of many batches --------------------------------------------------------

    async def begin_write(
        self, topic: str, id: str, run: str, *, number: int | None = None, all_topics: bool = False
    ) -> Write:
        """Begin a write to a topic, unless a run has begun it already; returns the stored write.

        For a job that publishes in many batches: another run of the same write learns that it
        was begun, and whether it is finished, before it publishes anything. Writes with a
        ``number`` follow each other under one id: only the last is remembered, and an earlier
        one is refused (``Conflict``).

        With ``all_topics`` the id means one write to all topics: the run that began it for the
        first topic has begun it for the others too.
        """
        ...

    async def finish_write(
        self, topic: str, id: str, run: str, rows: int, *, number: int | None = None
    ) -> Write:
        """Finish a write that has published ``rows`` messages; it is kept for 30 days."""
        ...

    # -- runs of pipeline jobs ---------------------------------------------------------

    async def put_run(self, run: Run) -> None:
        """Store a run, or an update of it; the last 1,000 are kept."""
        ...

    async def run(self, id: str) -> Run | None:
        """The run, or None when it is not on record."""
        ...

    async def runs(self, job: str | None = None, limit: int = 100) -> tuple[Run, ...]:
        """Runs of one job or of all, the newest first."""
        ...

    async def put_report(self, page: str) -> None:
        """Store the page of a report, for the console; it replaces the one before."""
        ...

    async def report(self) -> StoredReport | None:
        """The newest report, or None if there is none."""
        ...

    # -- the server --------------------------------------------------------------------

    async def server_settings(self) -> ServerSettings:
        """The settings of the server that jobs and commands depend on."""
        ...
