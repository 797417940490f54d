"""The README holds what it says: every command and every example in it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("script", ["quickstart.py", "demo.py"])
def test_what_make_run_and_demo_run(script: str, tmp_path: Path) -> None:
    target = {"quickstart.py": "run", "demo.py": "demo"}[script]
    assert any(f"examples/{script}" in line for line in _recipe(target))
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / script],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert {"quickstart.py": "2 done", "demo.py": "each once"}[script] in done.stdout


def test_what_make_bench_runs(tmp_path: Path) -> None:
    """Every benchmark runs and checks its messages; the figures of so short a run mean nothing."""
    assert any("-m bench" in line for line in _recipe("bench"))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench"),
            *("--seconds", "0.05", "--rounds", "1", "--deep", "2000"),
        ],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env={"PENSTOCK_BENCH_DIR": str(tmp_path)},
    )
    assert done.returncode in (0, 1), done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 7, done.stderr
    assert all(re.match(r" *\d+\.\d\d  \(at (least|most) \d+\.\d\d, ", line) for line in lines)


def test_what_make_test_runs() -> None:
    recipe = _recipe("test")
    assert any("-m pytest" in line for line in recipe)
    assert any("ruff check" in line for line in recipe)


def test_the_ten_lines_run_as_written(tmp_path: Path) -> None:
    (example,) = _fences("python")
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
