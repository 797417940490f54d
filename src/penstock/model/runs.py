"""Runs of pipeline jobs: what a job says of itself while it works, and how it ended.

A run is a record for people and for schedulers. Nothing in the store depends on it: a job that
was killed finds its work by the log, the lake and the queues, never by its run.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

__all__ = [
    "MAX_REPORT_BYTES",
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
]

#: Runs that are kept of a tenant. All of them are read to list some.
MAX_RUNS: Final = 1_000
#: Entries of ``progress`` and of ``summary``, each, and their bytes together.
MAX_RUN_VALUES: Final = 64
MAX_RUN_VALUES_BYTES: Final = 8 * 1024
#: A path or an address.
MAX_REPORT_BYTES: Final = 4 * 1024

#: ``lost`` is never recorded: a run is shown so when its job has not been heard of for a while.
RunState: TypeAlias = Literal["running", "succeeded", "failed", "stopped", "lost"]
#: What a job may say of itself.
RUN_STATES: Final[tuple[str, ...]] = tuple(s for s in get_args(RunState) if s != "lost")
#: A job that runs records itself at least this often.
RUN_HEARTBEAT_MS: Final = 10_000
#: One that the broker has not heard of for this long was killed, or cannot reach the broker.
RUN_LOST_MS: Final = 60_000

#: A count, a measure or a word.
RunValue: TypeAlias = int | float | str

NO_VALUES: Final[dict[str, RunValue]] = {}


class Run(Struct, frozen=True, kw_only=True):
    """One run of one job; times are epoch milliseconds, by the clock of whoever runs it."""

    id: str
    job: str
    """The name of the job: ``archive``, say."""
    state: RunState
    started_at: int
    updated_at: int
    finished_at: int | None = None
    """None while it is running."""
    progress: dict[str, RunValue] = NO_VALUES
    """How far it has come."""
    summary: dict[str, RunValue] = NO_VALUES
    """What it did."""
    error: str | None = None
    """What it failed by; a long text is cut."""
    report: str | None = None
    """Where its report is."""
