"""``penstock work``: finds the app, runs it, stops gracefully."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell

APP = """
import sys
import penstock
from penstock.worker import App

app = App({store!r})
nothing = object()

@app.worker("orders", concurrency=2)
async def handle(payload: bytes) -> None:
    print(payload.decode(), flush=True)
"""


@pytest.fixture
def module(orders: Shell, tmp_path: Path) -> Path:
    path = tmp_path / "shop_workers.py"
    path.write_text(APP.format(store=orders.store))
    return path


@pytest.mark.parametrize("name", ["shop_workers:app", "shop_workers"])
def test_it_works_until_it_is_told_to_stop(orders: Shell, module: Path, name: str) -> None:
    command = [sys.executable, "-m", "penstock", "work", name]
    with subprocess.Popen(command, cwd=module.parent, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = sorted(process.stdout.readline() for _ in range(3))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert lines == [b"one\n", b"three\n", b"two\n"]
    assert process.returncode == 0
    assert orders.json("queue", "show", "orders")["stats"]["done"] == 3


@law("E1")
@pytest.mark.parametrize(
    "name, code",
    [
        ("no_such_module_here:app", 3),
        ("shop_workers:missing", 3),
        ("shop_workers:nothing", 3),
        (":app", 2),
    ],
)
def test_an_app_that_is_none(sh: Shell, module: Path, name: str, code: int) -> None:
    result = sh.run("work", name)
    assert result.exit_code == code
    assert "Traceback" not in result.stderr


def test_an_error_in_the_module_is_shown_as_its_own(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "broken_workers.py").write_text("import no_such_library_here\n")
    result = sh.run("work", "broken_workers")
    assert result.exit_code == 1
    assert "no_such_library_here" in result.stderr
