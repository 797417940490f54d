"""The example programs, run as their users run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.service.serving import surroundings

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
END_S = 90


def environment(url: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    return surroundings() | {"PENSTOCK_URL": url, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


@contextmanager
def running(url: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, in a process group of its own, which is killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=EXAMPLES,
            env=environment(url),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process and its children."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


def run(url: str, *arguments: str) -> str:
    """A program to its end; returns what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=EXAMPLES,
        env=environment(url),
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
