"""Refuses a second run of a job into a folder that another run is writing to.

On one machine a file lock decides, which ends with its process: a killed run can be repeated
immediately. A run on another machine is found by its record, which its heartbeat keeps current.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.errors import Conflict
from penstock.model.runs import RUN_LOST_MS
from penstock.pipeline.context import JobContext

__all__ = ["only_run"]

#: Runs that are looked at; the newest come first.
_RECENT: Final = 100
_NAME_DIGITS: Final = 24


@contextmanager
def only_run(context: JobContext, job: str, folder: str) -> Iterator[None]:
    """Hold the folder for this job; raises ``Conflict`` if another run of it has it."""
    target = _absolute(folder)
    with ExitStack() as held:
        for path in _lock_paths(job, target):
            _lock(held, path, job, folder)
        host = socket.gethostname()
        context.claim_folder(job, target, host)
        _check_records(context, job, target, host)
        yield


def _lock(held: ExitStack, path: Path, job: str, folder: str) -> None:
    """Lock the file until ``held`` is closed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return  # The folder is not there yet, or cannot be written to.
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.pread(descriptor, 20, 0).decode() or "unknown"
        raise Conflict(
            f"Process {process} on this machine is running the job {job} into {folder}. Wait for "
            "it or stop it.",
            field="folder",
        ) from None
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _check_records(context: JobContext, job: str, target: str, host: str) -> None:
    """Look for a run on another machine, after this one is on record: one of two finds the other.

    Both may, if they begin at the same moment.
    """
    for run in context.remote.ask(lambda q: q.runs(limit=_RECENT)):
        there = run.progress.get("host")
        if (
            run.id != context.run
            and run.state == "running"
            and there not in (None, host)
            and run.progress.get(f"folder_{job}") == target
        ):
            raise Conflict(
                f"Run {run.id} on {there} is running the job {job} into {target}. If it was "
                f"killed, its folder is free {RUN_LOST_MS // 1000} s after its last heartbeat.",
                field="folder",
            )


def _absolute(folder: str) -> str:
    parts = urlsplit(folder)
    if parts.scheme and parts.scheme != "file":
        return folder.rstrip("/")
    return str(Path(parts.path if parts.scheme else folder).absolute())


def _lock_paths(job: str, target: str) -> Iterator[Path]:
    """A lock among temporary files, for folders that are not there yet or not local, and one in
    the folder, because services often have temporary files of their own."""
    name = hashlib.sha256(f"{job} {target}".encode()).hexdigest()[:_NAME_DIGITS]
    temporary = Path(tempfile.gettempdir(), f"penstock-jobs-{os.getuid()}")
    temporary.mkdir(mode=0o700, exist_ok=True)
    yield temporary / f"{name}.lock"
    if "://" not in target:
        yield Path(target, f".{job}.lock")
