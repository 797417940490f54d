"""The wheel on every other Python of this machine: it installs, serves, publishes and claims.

``make pythons`` runs the quick suite on them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pythons import interpreters, make_environment, supported_versions, version_of
from tests.service.environments import PIP, build_wheel
from tests.service.serving import surroundings

THIS = version_of(sys.executable)
INSTALL_S = 240

#: Serves a store on disk, and publishes, works and claims there.
PROGRAM = """
import asyncio, json, signal, subprocess, sys
from pathlib import Path
import penstock

command = ["penstock", "serve", "--json", "--port", "0", "--store", "rocksdb:store"]
serving = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE)
try:
    url = json.loads(serving.stdout.readline())["url"]
    app = penstock.App(url)

    @app.worker("billing", filter="topic = 'orders'")
    async def charge(order: dict) -> dict:
        return {"charged": order["order"]}

    async def main():
        async with penstock.connect(url) as q:
            await q.create_queue("audit", "topic = 'orders' AND amount >= 100")
            running = asyncio.ensure_future(app.run())
            await q.ensure_queue("billing", "topic = 'orders'")
            published = await q.publish("orders", {"order": 7}, headers={"amount": 250})
            [delivery] = await q.claim("audit")
            await q.ack(delivery)
            result = await q.result("billing", published.id, wait_ms=30_000)
            print(delivery.payload, result.result)
            app.stop()
            await running

    asyncio.run(main())
    print(Path(penstock.__file__).is_relative_to(sys.prefix))
finally:
    serving.send_signal(signal.SIGTERM)
    print(serving.wait(60))
    serving.stdout.close()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


def test_the_versions_are_those_that_the_project_names() -> None:
    assert THIS in supported_versions()
    assert supported_versions() == ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [item for item in supported_versions() if item != THIS])
def test_the_wheel_works_on(version: str, wheel: Path, tmp_path: Path) -> None:
    interpreter = interpreters().get(version)
    if interpreter is None:
        pytest.skip("not on this machine")
    python = make_environment(interpreter, tmp_path / "environment")
    command = [*PIP, "--python", str(python), "install", f"{wheel}[server,rocksdb]"]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    if "NewConnectionError" in installed.stderr or "Temporary failure" in installed.stderr:
        pytest.skip("the package index cannot be reached")
    assert installed.returncode == 0, installed.stderr
    done = subprocess.run(
        [python, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path,
        env=surroundings() | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["""b'{"order":7}' b'{"charged":7}'""", "True", "0"]
