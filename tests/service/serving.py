"""``penstock serve`` as a process of its own, and what can be seen of it from outside.

A server is ready when it says so on its standard output; its log goes to a file, which a
failing test prints. Whatever happens, ``Serve.end`` leaves no process behind.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

PENSTOCK = (sys.executable, "-m", "penstock")
#: A process that imports everything on a machine with better things to do.
START_S = 60
#: Ending is a matter of a second; this is for a machine that is busy.
END_S = 60


def surroundings() -> dict[str, str]:
    """The environment without settings of Penstock."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}


class Answer(Struct, frozen=True):
    """A reply over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """One server process."""

    def __init__(
        self, process: subprocess.Popen[bytes], log: Path, told: Mapping[str, Any]
    ) -> None:
        self.process = process
        self.log = log
        self.told = told
        self.url: str = told["url"]
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        credential: str | None = None,
        timeout_s: float = 30,
        media: str = "application/json",
    ) -> Answer:
        """One request on a connection of its own; the body is sent as JSON."""
        typed = body is not None or method == "POST"
        headers = {"Content-Type": media} if typed else {}
        if credential is not None:
            headers["Authorization"] = f"Bearer {credential}"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, headers)
            reply = connection.getresponse()
            return Answer(reply.status, dict(reply.headers), reply.read())
        finally:
            connection.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Tell it to stop; returns its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        code = self.process.wait(END_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def rss_bytes(self) -> int:
        """Memory of the process that is not shared with files' pages alone."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise LookupError("the process has no memory: it is dead")

    def cpu_s(self) -> float:
        """Seconds that its threads have worked."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        """Files and sockets that it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")


class Serve:
    """Starts servers below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def store(self) -> str:
        """The store that servers have unless they are told another."""
        return f"rocksdb://{self.folder}/store"

    def __call__(
        self, *flags: str, store: str | None = None, port: int = 0, files: int | None = None
    ) -> Served:
        """A server that answers; it may open so many files."""
        process, log = self.begin("--json", *flags, store=store, port=port, files=files)
        assert process.stdout is not None
        line = read_line(process, START_S)
        if not line:
            process.kill()
            raise AssertionError(f"it did not start: {log.read_text(errors='replace')}")
        return Served(process, log, json.loads(line))

    def begin(
        self, *flags: str, store: str | None = None, port: int = 0, files: int | None = None
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """A server that may or may not come up, and where its log is."""
        log = self.folder / f"server-{len(self._processes)}.log"
        bounded = () if files is None else ("prlimit", f"--nofile={files}:{files}")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [
                    *(*bounded, *PENSTOCK, "serve", "--store", store or self.store),
                    *("--port", str(port), *flags),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.folder,
                env=surroundings(),
                bufsize=0,
            )
        self._processes.append(process)
        return process, log

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Another command, to its end."""
        return subprocess.run(
            [*PENSTOCK, *args],
            capture_output=True,
            text=True,
            timeout=END_S,
            cwd=self.folder,
            env=surroundings(),
        )

    def end(self) -> None:
        """Kill what is left."""
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def read_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """The next line of its output; nothing if it ended, or said nothing for so long."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([process.stdout], [], [], timeout_s)
        part = os.read(process.stdout.fileno(), 1) if readable else b""
        if not part:
            return b""
        line += part
    return line


_ports = count(os.getpid() * 37)


def unused_port() -> int:
    """A port that stays free while its server is down.

    It is none that the system would give to somebody's connection in the meantime, and test
    processes look for one in different places.
    """
    while True:
        port = 10_000 + next(_ports) % 20_000
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code, while the event loop goes on."""
    return await asyncio.to_thread(process.wait, END_S)


def folder_bytes(folder: Path) -> int:
    """What the files below a folder take; those that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
