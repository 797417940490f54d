"""The second run of tests that failed: which it forgives, and which never."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.whole_suite import MAX_REPEATED, may_run_again, run

PROGRAM = """
from pathlib import Path

def test_unsteady():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("only once")

def test_steady():
    assert {steady}
"""


def suite(root: Path, *, steady: bool) -> Path:
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "test_it.py").write_text(PROGRAM.format(steady=steady))
    return root


def test_a_test_that_passes_alone_is_forgiven_and_listed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["-q"], suite(tmp_path, steady=True)) == 0
    assert (
        "UNSTEADY: passed only in the second run: test_it.py::test_unsteady"
        in capfd.readouterr().out
    )


def test_a_test_that_fails_twice_fails_the_suite(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["-q"], suite(tmp_path, steady=False)) == 1
    printed = capfd.readouterr().out
    assert "test_it.py::test_steady - assert False" in printed
    assert "UNSTEADY: passed only in the second run: test_it.py::test_unsteady" in printed


def test_a_run_that_passes_is_not_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seen").touch()
    assert run(["-q"], suite(tmp_path, steady=True)) == 0
    assert "again" not in capfd.readouterr().out


def test_a_run_that_breaks_off_is_not_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite(tmp_path, steady=True)
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    assert run(["-q"], tmp_path) == 2
    assert "again" not in capfd.readouterr().out


def test_some_failures_are_final() -> None:
    assert may_run_again(["tests/service/test_head.py::test_it"])
    assert not may_run_again([])
    assert not may_run_again([f"tests/unit/test_it.py::test_{n}" for n in range(MAX_REPEATED + 1)])
    for folder in ("properties", "crash", "unit/testing/simulation"):
        assert not may_run_again(
            [f"tests/{folder}/test_it.py::test_it", "tests/service/test_head.py::test_it"]
        )
