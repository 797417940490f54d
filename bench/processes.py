"""Private servers for the benchmarks: ours, and a bare handler; each has its own port."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_S = 20.0


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


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
def penstock_server(folder: Path, *flags: str) -> Iterator[Server]:
    port = free_port()
    store = f"rocksdb://{folder}/store"
    command = [sys.executable, "-m", "penstock", "serve", "--store", store, "--port", str(port)]
    with running([*command, *flags], port) as server:
        yield server


@contextmanager
def bare_server() -> Iterator[Server]:
    """An ASGI handler that only parses the body and answers."""
    port = free_port()
    with running([sys.executable, "-m", "bench.bare_asgi", str(port)], port) as server:
        yield server
