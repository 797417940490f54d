"""The private PostgreSQL server of the peers that store messages in one.

It is the one of the tests, with fsync. Its folder is in the directory for temporary files (TMPDIR):
PostgreSQL does not run as root, and its own user may have no access to the working directory.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from bench.peers.peer import MissingPeer
from tests.databases import PostgreSQL

__all__ = ["Database"]

_NAME: Final = "bench"


class Database:
    """A server with one database."""

    def __init__(self) -> None:
        self._server = PostgreSQL(fsync=True)
        self._is_new = True

    @staticmethod
    def version() -> str:
        """Raises ``MissingPeer`` if PostgreSQL is not installed."""
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not programs:
            raise MissingPeer("postgres is not installed: apt-get install postgresql")
        said = subprocess.run(
            [programs[-1], "--version"], check=True, capture_output=True, text=True
        )
        return said.stdout.split()[2]

    @property
    def folder(self) -> Path:
        return self._server.folder

    @property
    def url(self) -> str:
        return self._server.url(_NAME)

    def start(self) -> bool:
        """Start the server; returns whether the database is new."""
        self._server.start()
        is_new, self._is_new = self._is_new, False
        if is_new:
            self._server.create_database(_NAME)
        return is_new

    def stop(self) -> None:
        """Stop the server, and remove its folder."""
        self._server.close()

    def kill(self) -> None:
        """End all processes with SIGKILL."""
        self._server.kill()

    def roots(self) -> list[int]:
        return [self._server.pid]
