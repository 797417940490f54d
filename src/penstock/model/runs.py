"""Runs of pipeline jobs: what a job reports while it works, and how it ended.

A run is a record for people and for schedulers. Nothing in the store depends on it: a killed
job finds its work through the log, the lake and the queues, never through its run.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

__all__ = [
    "MAX_REPORT_BYTES",
    "MAX_REPORT_PAGE_BYTES",
    "MAX_RUNS",
    "MAX_RUN_VALUES",
    "MAX_RUN_VALUES_BYTES",
    "NO_VALUES",
    "RUN_HEARTBEAT_MS",
    "RUN_LOST_MS",
    "RUN_STATES",
    "Run",
    "RunState",
    "RunValue",
    "StoredReport",
]

#: Runs kept per tenant. Listing some of them reads all.
MAX_RUNS: Final = 1_000
#: The entries of ``progress`` and of ``summary``, and their total bytes.
MAX_RUN_VALUES: Final = 64
MAX_RUN_VALUES_BYTES: Final = 8 * 1024
#: A path or an address.
MAX_REPORT_BYTES: Final = 4 * 1024
#: A page with the most queues, topics and failures that it shows has a few hundred KiB.
MAX_REPORT_PAGE_BYTES: Final = 4 * 1024 * 1024

#: ``lost`` is never recorded: it is shown for a run whose job has not reported for a while.
RunState: TypeAlias = Literal["running", "succeeded", "failed", "stopped", "lost"]
#: The states that a job may report.
RUN_STATES: Final[tuple[str, ...]] = tuple(s for s in get_args(RunState) if s != "lost")
#: A running job records itself at least this often.
RUN_HEARTBEAT_MS: Final = 10_000
#: A job that has not reported for this long was killed, or cannot reach the broker.
RUN_LOST_MS: Final = 60_000

#: A count, a measure or a word.
RunValue: TypeAlias = int | float | str

NO_VALUES: Final[dict[str, RunValue]] = {}


class Run(Struct, frozen=True, kw_only=True):
    """One run of one job; times are epoch milliseconds, by the clock of the job's machine."""

    id: str
    job: str
    """The name of the job, such as ``archive``."""
    state: RunState
    started_at: int
    updated_at: int
    finished_at: int | None = None
    """None while it is running."""
    progress: dict[str, RunValue] = NO_VALUES
    """How far the run has got."""
    summary: dict[str, RunValue] = NO_VALUES
    """What the run did."""
    error: str | None = None
    """The error that it failed with; a long text is truncated."""
    report: str | None = None
    """Where its report is."""


class StoredReport(Struct, frozen=True):
    """The newest report of a tenant, as the job sent it."""

    stored_at: int
    """When the broker stored it, by its own clock."""
    page: str
    """The page, as HTML. It is shown in a sandbox: it may run scripts, and reach nothing."""
