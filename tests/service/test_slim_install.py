"""A client and a worker without extras, and a server, installed from the source distribution."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.service.environments import build_wheel, install
from tests.service.serving import END_S, START_S, Serve, read_line, surroundings

#: Publishes, works and waits for the result; prints it and the modules that were loaded.
PROGRAM = """
import asyncio, sys
import penstock

app = penstock.App(sys.argv[1])

@app.worker("billing", filter="topic = 'orders'")
async def charge(order: dict) -> dict:
    return {"charged": order["order"]}

async def main():
    running = asyncio.ensure_future(app.run())
    async with penstock.connect(sys.argv[1]) as q:
        await q.ensure_queue("billing", "topic = 'orders'")
        published = await q.publish("orders", {"order": 7})
        result = await q.result("billing", published.id, wait_ms=30_000)
    app.stop()
    await running
    return result

print(asyncio.run(main()).result)
with penstock.sync.connect(sys.argv[1]) as q:
    print(q.stats("billing").done)
with penstock.sync.open("memory://") as q:
    print(q.publish("orders", b"").duplicate)
try:
    penstock.sync.open("rocksdb:store")
except penstock.errors.MissingExtra as error:
    print(error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture
def slim(wheel: Path, tmp_path: Path) -> Path:
    """The interpreter of an environment without extras."""
    assert install(wheel, tmp_path / "slim") == {"msgspec", "sortedcontainers", "xxhash"}
    return tmp_path / "slim" / "bin" / "python"


def test_the_wheel_serves(wheel: Path, tmp_path: Path) -> None:
    """What ``pipx run --spec 'penstock[server,rocksdb]' penstock serve`` runs."""
    home = tmp_path / "server"
    install(wheel, home, "server", "rocksdb")
    process = subprocess.Popen(
        [
            *(home / "bin" / "penstock", "serve", "--json", "--port", "0"),
            *("--store", f"rocksdb://{tmp_path}/store"),
        ],
        cwd=tmp_path,
        env=surroundings() | {"PYTHONPATH": ""},
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    try:
        port = int(json.loads(read_line(process, START_S))["url"].rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_client_and_a_worker_without_extras(slim: Path, serve: Serve, tmp_path: Path) -> None:
    server = serve()
    done = subprocess.run(
        [slim, "-I", "-c", PROGRAM, server.url],
        cwd=tmp_path,
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    charged, finished, duplicate, missing = done.stdout.splitlines()
    assert (charged, finished, duplicate) == ("""b'{"charged":7}'""", "1", "False")
    assert "pip install 'penstock[rocksdb]'" in missing
    command = subprocess.run(
        [slim.with_name("penstock"), "queue", "list"], capture_output=True, text=True, timeout=60
    )
    assert command.returncode == 7
    assert "pip install 'penstock[cli]'" in command.stderr
    refused = subprocess.run(
        [slim.with_name("penstock"), "serve", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 7
    install_it, run_it = refused.stderr.splitlines()
    assert "pip install 'penstock[server,rocksdb]'" in install_it
    assert "pipx run --spec 'penstock[server,rocksdb]' penstock serve --port 0" in run_it
