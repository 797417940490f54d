"""The README holds what it says: every command and every example in it runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.inline import inline

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _fences(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


COMMANDS = [line for fence in _fences("sh") for line in fence.splitlines() if line.strip()]


def _recipe(target: str) -> list[str]:
    """What ``make target`` would run, without running it."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", target],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def test_it_shows_the_two_commands() -> None:
    assert COMMANDS[:2] == ["make run", "make test"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_a_target(command: str) -> None:
    make, target = command.split()
    assert make == "make"
    assert _recipe(target)


def test_every_extra_is_listed() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    listed = re.findall(r"`(?:penstock)?\[(\w+)\]`", README)
    # `delta` is part of `spark`, and kept for those who name it.
    assert set(listed) == extras.keys() - {"bench", "delta", "dev"}


def test_what_make_run_runs(tmp_path: Path) -> None:
    """The server answers, prints what to do next, and stops when it is told to."""
    [line] = [line for line in _recipe("run") if "penstock serve" in line]
    arguments = line.partition("penstock serve")[2].split()
    store = arguments[arguments.index("--store") + 1]
    assert store == "rocksdb:data/penstock"
    serving = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", "--store", store, "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        first = serving.stdout.readline()
        url = re.search(r"http://\S+", first)
        assert url is not None, first
        with urllib.request.urlopen(f"{url[0]}/readyz", timeout=60) as reply:
            assert reply.status == 200
        serving.terminate()
        # Not communicate: that does not see what was read ahead with the first line.
        rest = serving.stdout.read()
        serving.wait(60)
    finally:
        serving.kill()
        serving.communicate()
    assert serving.returncode == 0
    assert "/v1/topics/orders/messages" in rest
    assert (tmp_path / "data" / "penstock").is_dir()


@pytest.mark.parametrize("script", ["quickstart.py", "worker.py"])
def test_the_examples_run(script: str, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "examples" / script],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_make_demo_runs(tmp_path: Path) -> None:
    assert any("examples/demo.py" in line for line in _recipe("demo"))
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", "10000"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "published 10,000 messages" in done.stdout
    assert (tmp_path / "demo-report" / "index.html").exists()


def test_what_make_bench_runs() -> None:
    """The benchmarks themselves have their tests in ``tests/bench``."""
    assert any("-m bench" in line for line in _recipe("bench"))


def test_what_make_test_runs() -> None:
    recipe = _recipe("test")
    assert any("-m pytest" in line for line in recipe)
    assert any("ruff check" in line for line in recipe)


def test_the_ten_lines_run_as_written(tmp_path: Path) -> None:
    example, _ = _fences("python")
    body = [line for line in example.splitlines() if line.strip()]
    assert len(body) <= 10
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert b'{"order":7}' in done.stdout.encode()
    assert "'amount': 250" in done.stdout


async def test_the_worker_runs_as_written() -> None:
    """Its module defines an app; in line, in memory, it does what it says."""
    _, example = _fences("python")
    space: dict[str, Any] = {}
    exec(example, space)
    async with inline(space["app"]) as q:
        await q.put_queue("billing", "topic = 'orders'")
        published = await q.publish("orders", {"order": 7})
        await q.run_until_idle()
        result = await q.result("billing", published.id)
    assert result is not None
    assert result.result == b'{"charged":7}'
