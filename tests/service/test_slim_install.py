"""``pip install penstock`` without extras: a client and a worker, against a complete server.

The wheel is built and installed for real. The packages that it requires are copied from the
environment of the tests, exactly those and nothing else, so that no package index is needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ZipPath

import pytest

from tests.service.serving import Serve, surroundings

ROOT = Path(__file__).parents[2]
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


def required(dist: Distribution) -> set[str]:
    """The packages that a distribution needs without extras."""
    lines = [line for line in dist.requires or () if "extra ==" not in line]
    return {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in lines}


def copy(dist: Distribution, site: Path) -> None:
    for file in dist.files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.locate().read_bytes())  # type: ignore[attr-defined,unused-ignore]


@pytest.fixture
def slim(tmp_path: Path) -> Path:
    """The interpreter of an environment with the wheel and what it requires."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*pip, "wheel", *options, str(ROOT)], check=True, timeout=120)
    [wheel] = tmp_path.glob("penstock-*.whl")
    home = tmp_path / "slim"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    install = ["--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=120)
    [site] = home.glob("lib/python*/site-packages")
    [metadata] = [path for path in ZipPath(wheel).iterdir() if path.name.endswith(".dist-info")]
    waiting = required(PathDistribution(metadata))
    assert {name.lower() for name in waiting} == {"msgspec", "sortedcontainers", "xxhash"}
    while waiting:
        needed = distribution(waiting.pop())
        copy(needed, site)
        waiting |= required(needed)
    return python


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
