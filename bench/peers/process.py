"""A process of a run, server or client, which ends with the benchmark.

``tests/guard.py`` runs it: the guard ends the process if the benchmark dies, and kills it with all
its children when it is asked to, as a crash would.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.private_server import GUARD

__all__ = ["GuardedProcess"]

_STOP_S: Final = 60.0
#: Of the log that an error shows.
_LOG_CHARACTERS: Final = 2_000


class GuardedProcess:
    """A program in the foreground, with its output in a log."""

    def __init__(
        self, log: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(GUARD), str(log.parent), ""),
                    *(str(int(signal.SIGKILL)), *command),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                bufsize=0,
            )
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline() or 0)

    @property
    def root(self) -> int:
        """The process whose descendants belong to the program."""
        return self._guard.pid

    @property
    def has_ended(self) -> bool:
        return self._guard.poll() is not None

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS:]

    def wait(self, seconds: float = _STOP_S) -> int:
        """The exit code. Raises ``subprocess.TimeoutExpired`` if it does not end."""
        code = self._guard.wait(seconds)
        for pipe in (self._guard.stdin, self._guard.stdout):
            assert pipe is not None
            pipe.close()
        return code

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL for all of its processes."""
        assert self._guard.stdin is not None
        # The pipe is broken or closed if the program has ended.
        with suppress(BrokenPipeError, ValueError):
            self._guard.stdin.write(b"kill\n")
        self.wait()
