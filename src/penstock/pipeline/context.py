"""The context of a job: a server, a Spark session, a lake, a progress display, a run record."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec import Struct

from penstock.client import Client
from penstock.errors import BadInput
from penstock.model.clock import Clock, SystemClock
from penstock.model.runs import NO_VALUES, Run, RunState
from penstock.pipeline.heartbeat import Heartbeat
from penstock.pipeline.lake.files import Files, open_files
from penstock.pipeline.lake.s3_location import public_name
from penstock.pipeline.remote import Remote, Server
from penstock.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobContext", "JobOptions", "Number", "Silent", "Summary", "Watcher"]

Number: TypeAlias = int | float | str
#: The result of a job, printed at its end and stored in its run record.
Summary: TypeAlias = dict[str, Number]

#: How often the record of a running job is updated.
_RECORD_EVERY_MS: Final = 2_000
#: Log entries in the store below which a session is started for a small input.
_FEW_ENTRIES: Final = 100_000
#: The job whose input is not the log.
_READS_FILES: Final = "ingest"


class Watcher(Protocol):
    """Receives the progress of a job: a progress bar, lines, or nothing."""

    def reach(self, what: str, done: int, total: int | None = None) -> None:
        """``done`` are done, of ``total`` if that is known."""
        ...

    def note(self, text: str) -> None:
        """Show a text immediately, even if the job does not finish."""
        ...


class Silent:
    """Ignores all progress."""

    def reach(self, what: str, done: int, total: int | None = None) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""


class JobOptions(Struct, frozen=True, kw_only=True):
    """The options that all jobs have."""

    server: Server
    lake: str | None = None
    master: str | None = None
    """Where Spark runs; None: on this machine, or as set by ``spark-submit``."""
    settings: Mapping[str, str] = {}
    """Additional Spark settings."""
    continuous: bool = False
    interval_s: float = 10.0
    """Seconds between two passes of a continuous job."""


class JobContext:
    """The context of one run of a job."""

    def __init__(
        self,
        options: JobOptions,
        *,
        run: str,
        job: str,
        watcher: Watcher | None = None,
        clock: Clock | None = None,
        stopping: threading.Event | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        self.options = options
        self.server = options.server
        self.run = run
        """The id of this run, which its writes may carry."""
        self.job = job
        self.clock = clock or SystemClock()
        self.stopping = stopping or threading.Event()
        """Set when the job is asked to end; it ends at its next safe point."""
        self.remote: Remote = options.server.open()
        self.report: str | None = None
        """Where the job has written its report, if any."""
        self._watcher = watcher or Silent()
        self._spark = spark
        #: A session that the caller created is the caller's to stop.
        self._stops_spark = spark is None
        self._started_at = self.clock.now()
        self._recorded_at = 0
        self._heartbeat: Heartbeat | None = None
        #: The folders that this run writes to, and its machine; part of its progress.
        self._folders: Summary = {}

    @property
    def spark(self) -> SparkSession:
        """The session, created when a job first needs it."""
        if self._spark is None:
            self._spark = spark_session(
                f"penstock {self.job}",
                master=self.options.master,
                settings=self.options.settings,
                short=self._is_short(),
            )
        return self._spark

    def _is_short(self) -> bool:
        """Whether the job is over soon: it runs once, over few entries of the log."""
        if self.options.continuous or self.job == _READS_FILES:
            return False
        first, end = (self.remote.ask(verb) for verb in (Client.log_start, Client.log_end))
        return end - first < _FEW_ENTRIES

    @property
    def lake(self) -> str:
        """The lake's path without credentials; raises ``BadInput`` if none was given."""
        if self.options.lake is None:
            raise BadInput(f"The job {self.job} needs a lake: use --lake.", field="lake")
        return public_name(self.options.lake)

    def lake_files(self) -> Files:
        """The files of the lake."""
        if self.options.lake is None:
            raise BadInput(f"The job {self.job} needs a lake: use --lake.", field="lake")
        return open_files(self.options.lake, lambda: self.spark)

    def reach(
        self, what: str, done: int, total: int | None = None, more: Mapping[str, Number] = NO_VALUES
    ) -> None:
        """Report progress to the watcher, and from time to time, with ``more``, to the broker."""
        self._watcher.reach(what, done, total)
        now = self.clock.now()
        if now - self._recorded_at >= _RECORD_EVERY_MS:
            progress: Summary = {"what": what, "done": done, **more}
            if total is not None:
                progress["total"] = total
            self.record("running", progress=progress)

    def claim_folder(self, job: str, folder: str, host: str) -> None:
        """Record that this run writes to the folder, for other runs to see."""
        self._folders |= {"host": host, f"folder_{job}": folder}
        self.record("running")

    def note(self, text: str) -> None:
        """Show a text immediately."""
        self._watcher.note(text)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next pass; returns True if the job is asked to end instead."""
        return self.stopping.wait(self.options.interval_s if seconds is None else seconds)

    def record(
        self,
        state: RunState,
        *,
        progress: Summary | None = None,
        summary: Summary | None = None,
        error: str | None = None,
    ) -> None:
        """Store the record of this run."""
        self._recorded_at = now = self.clock.now()
        run = Run(
            id=self.run,
            job=self.job,
            state=state,
            started_at=self._started_at,
            updated_at=now,
            finished_at=None if state == "running" else now,
            progress={**self._folders, **(progress or {})},
            summary=summary or {},
            error=error,
            report=self.report,
        )
        if state == "running":
            self.remote.ask(lambda q: q.put_run(run))
            if self._heartbeat is None:
                self._heartbeat = Heartbeat(self.server, self.clock)
            self._heartbeat.run = run
        else:
            # First: a heartbeat in progress could overwrite the record with state running.
            self._end_heartbeat()
            self.remote.ask(lambda q: q.put_run(run))

    def _end_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    def close(self) -> None:
        """Close the connection, and stop Spark if this job started it."""
        self._end_heartbeat()
        self.remote.close()
        if self._spark is not None and self._stops_spark:
            self._spark.stop()
