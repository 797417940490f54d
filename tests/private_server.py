"""A private server: a folder, a port, a process, and how its life goes.

A server has a temporary folder and a free port of its own; the system's instances are never
touched. It dies with the process that started it, even if that is killed (see ``guard``). Root
starts it as an ordinary user, since PostgreSQL insists on that.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from tests.service.serving import unused_port

__all__ = ["PASSWORD", "START_S", "STOP_S", "USER", "PrivateProcess", "Server", "binary"]

#: Who owns every database. The password has to be quoted in a URL.
USER = "penstock"
PASSWORD = "p@ss/w%rd"

#: A start replays the log if the server was killed; this is for a machine that is busy.
START_S = 60.0
#: And so is a stop, which writes everything down.
STOP_S = 60.0
#: Between looks whether the server is up.
LOOK_S = 0.01

GUARD = Path(__file__).with_name("guard.py")


class PrivateProcess(ABC):
    """A server, which is down until it is started."""

    SCHEME: ClassVar[str]
    #: Users that a package may have created for the server; the first that exists runs it. With
    #: none it runs as whoever runs the tests.
    USERS: ClassVar[tuple[str, ...]] = ()
    #: Ends it with everything written, and at once with no wish to see it again.
    STOP: ClassVar[signal.Signals] = signal.SIGTERM
    ABANDON: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self) -> None:
        self.port = unused_port()
        self.pid = 0
        """Of the server's (main) process."""
        self._user = _ordinary_user(self.USERS)
        self._guard: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=f"penstock-{self.SCHEME}-"))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        if self._user:
            shutil.chown(self.folder, self._user)
        atexit.register(self.close)

    # -- its life ----------------------------------------------------------------------

    def start(self) -> None:
        """Start it, on the data and the port that it had before; returns when it answers."""
        new = not self.data.exists()
        if new:
            self._install()
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(GUARD), str(self.folder), self._user),
                    *(str(int(self.ABANDON)), *self._command()),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                bufsize=0,
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline() or 0)
        deadline = time.monotonic() + START_S
        while not self._ready():
            if self._guard.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.SCHEME} did not start:\n{self.said()}")
            time.sleep(LOOK_S)
        if new:
            self._prepare()

    def stop(self) -> None:
        """Stop it cleanly: clients are thrown out, everything is written down."""
        os.kill(self.pid, self.STOP)
        self._ended()

    def kill(self) -> None:
        """kill -9 for the whole server, whatever it was doing."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"kill\n")
        self._ended()

    def restart(self) -> None:
        """Stop it cleanly and start it again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it for good, and remove what it had."""
        atexit.unregister(self.close)
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._ended()
        shutil.rmtree(self.folder, ignore_errors=True)

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:]

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._guard is not None and self._guard.poll() is None

    # -- what differs ------------------------------------------------------------------

    @abstractmethod
    def _install(self) -> None:
        """Make the data folder."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The server, in the foreground."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether it answers."""

    @abstractmethod
    def _prepare(self) -> None:
        """Called once, when it answers for the first time."""

    def _run(self, command: list[str]) -> str:
        """A program of the server's package, as the server's user; what it prints."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.folder,
            user=self._user or None,
            group=pwd.getpwnam(self._user).pw_gid if self._user else None,
            extra_groups=() if self._user else None,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _ended(self) -> None:
        guard, self._guard = self._guard, None
        assert guard is not None
        assert guard.stdin is not None
        assert guard.stdout is not None
        try:
            guard.wait(STOP_S)
        finally:
            guard.stdin.close()
            guard.stdout.close()


class Server(PrivateProcess):
    """A database server.

    Without ``fsync`` it leaves writing to the system, and is quicker: a commit outlives the
    server, even if that is killed, but would not outlive a machine that loses its power.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        self.fsync = fsync
        super().__init__()

    def url(self, database: str) -> str:
        """Where a store in the database is."""
        user = f"{USER}:{quote(PASSWORD, safe='')}"
        return f"{self.SCHEME}://{user}@127.0.0.1:{self.port}/{database}"

    @abstractmethod
    def sql(self, statements: str, database: str | None = None) -> list[list[str]]:
        """Run statements as the administrator; the rows they give, as text."""

    @abstractmethod
    def create_database(self, name: str) -> None:
        """An empty one, which belongs to the user."""

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop it, whoever is connected; fine if there is none."""

    @abstractmethod
    def kill_backends(self, database: str) -> None:
        """End every connection to the database; returns when they are gone."""

    @abstractmethod
    def tables(self, database: str) -> list[str]:
        """The names of its tables."""

    @abstractmethod
    def empty(self, database: str, tables: Iterable[str]) -> None:
        """Throw everybody out of the database, and delete all rows of the tables."""

    def _prepare(self) -> None:
        self._create_user()

    @abstractmethod
    def _create_user(self) -> None:
        """Create the user of the stores."""


def binary(name: str, package: str) -> str:
    """Where a program is; Debian keeps some off an ordinary user's PATH."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        raise RuntimeError(f"The tests need {name}: apt-get install {package}")
    return found


def _ordinary_user(names: tuple[str, ...]) -> str:
    """Who runs the server if we are root; nobody in particular if we are not."""
    if os.geteuid() or not names:
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in names if name in known)
