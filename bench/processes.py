"""Private servers for the benchmarks, ours and Redis, each with its own folder and port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_S = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu_s(self) -> float:
        """CPU seconds so far, including threads and finished children."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], port: int) -> Iterator[Server]:
    """Start the server, wait for its port, and stop it at the end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _await_port(process, port)
        yield Server(process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            assert process.stderr is not None
            raise RuntimeError(process.stderr.read().decode())
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port}")


@contextmanager
def penstock_server(folder: Path) -> Iterator[Server]:
    port = free_port()
    store = f"rocksdb://{folder}/store"
    command = [sys.executable, "-m", "penstock", "serve", "--store", store, "--port", str(port)]
    with running(command, port) as server:
        yield server


@contextmanager
def bare_server() -> Iterator[Server]:
    """An ASGI handler that only parses the body and answers."""
    port = free_port()
    with running([sys.executable, "-m", "bench.bare_asgi", str(port)], port) as server:
        yield server


@contextmanager
def redis_server(folder: Path) -> Iterator[Server]:
    """Redis with durable replies, like ours."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise RuntimeError("redis-server is missing: apt-get install redis-server")
    port = free_port()
    folder.mkdir(exist_ok=True)
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    with running([*command, "--daemonize", "no"], port) as server:
        yield server
