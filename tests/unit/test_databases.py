"""What tests with databases rely on: a kill is a kill, a commit outlives it, nothing is left."""

from __future__ import annotations

import inspect
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import Engine, EngineOptions
from penstock.testing.clock import FakeClock
from tests.databases import MariaDB, PostgreSQL, Server, store_opener

ROOT = Path(__file__).parents[2]

#: Holds a connection to a database for an hour, or until it is thrown out.
SLEEP = {"postgresql": "SELECT pg_sleep(3600)", "mysql": "DO sleep(3600)"}
CONNECTIONS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3600)'",
    "mysql": "SELECT id FROM information_schema.processlist WHERE info LIKE 'DO sleep(3600)'",
}


@pytest.fixture(scope="module", params=[PostgreSQL, MariaDB])
def database(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of its own with a database ``store``."""
    server: Server = request.param()
    try:
        server.start()
        server.create_database("store")
        yield server
    finally:
        server.close()


def eventually(holds: Callable[[], bool]) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_commit_outlives_a_kill(database: Server) -> None:
    database.sql("CREATE TABLE kept (a integer PRIMARY KEY)", "store")
    database.sql("INSERT INTO kept VALUES (1)", "store")
    port, pid = database.port, database.pid
    database.kill()
    assert not database.running
    assert not Path(f"/proc/{pid}").exists()
    database.start()
    assert database.port == port
    assert database.sql("SELECT a FROM kept", "store") == [["1"]]
    database.restart()
    assert database.sql("SELECT a FROM kept", "store") == [["1"]]


def test_connections_are_ended(database: Server) -> None:
    with ThreadPoolExecutor() as others:
        other = others.submit(database.sql, SLEEP[database.SCHEME], "store")
        eventually(lambda: bool(database.sql(CONNECTIONS[database.SCHEME])))
        database.kill_backends("store")
        with pytest.raises(RuntimeError, match=r"terminat|server has gone|Lost connection"):
            other.result()
    assert database.sql(CONNECTIONS[database.SCHEME]) == []


@pytest.mark.parametrize("kind", [PostgreSQL, MariaDB])
def test_a_server_dies_with_the_process_that_started_it(kind: type[Server]) -> None:
    program = f"""
import os, signal
from tests.databases import {kind.__name__}
server = {kind.__name__}()
server.start()
print(server.pid, server.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, folder = done.stdout.split()
    eventually(lambda: not Path(f"/proc/{pid}").exists() and not Path(folder).exists())


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
async def test_a_folder_that_was_made_again_gets_an_empty_store(
    dialect: str, tmp_path: Path
) -> None:
    """pytest removes the folder of a test that passed and uses its name again."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for tenants in ((), ("acme",)):
        engine = await _open(dialect, folder)
        assert await engine.tenants() == tenants
        await engine.put_queue("acme", "q", QueuePolicy(filter="TRUE"), Start())
        await engine.close()
    shutil.rmtree(folder)
    folder.mkdir()
    engine = await _open(dialect, folder)
    assert await engine.tenants() == ()
    await engine.close()


async def _open(dialect: str, folder: Path) -> Engine:
    opening = store_opener(dialect)(EngineOptions(clock=FakeClock()), folder)
    assert inspect.isawaitable(opening)
    return await opening
