"""Run the whole suite, and then run the few tests that failed once more, one at a time.

``python -m tests.whole_suite [option of pytest]…``

Four test processes share two cores with databases and Java, so a test can fail because something
it waits for was not given a processor in time. Such a test passes when it runs alone. It is listed
at the end, because it still has to be fixed.

There is no second run for tests whose failure proves a defect even if a repetition passes: random
programs, simulations and kill tests. Nor is there one if many tests failed, or the run broke off.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["MAX_REPEATED", "may_run_again", "run"]

ROOT: Final = Path(__file__).resolve().parents[1]
#: More failures than this are not bad luck.
MAX_REPEATED: Final = 10
#: What pytest returns if all tests ran and some failed.
_SOME_FAILED: Final = 1
#: A failure in these is a defect, however rare it is.
_NEVER_REPEATED: Final = ("tests/properties/", "tests/crash/", "tests/unit/testing/")


def run(options: Sequence[str], root: Path = ROOT) -> int:
    """Run all tests below ``root``, then those that failed; returns the exit code."""
    _record(root).unlink(missing_ok=True)
    code = _pytest(root, options)
    failed = _last_failed(root)
    if code != _SOME_FAILED or not may_run_again(failed):
        return code
    print(f"\n{len(failed)} failed; running them again, one at a time", flush=True)
    code = _pytest(root, ["-n", "0", "--last-failed", "--last-failed-no-failures", "none"])
    for test in sorted(set(failed) - set(_last_failed(root))):
        print(f"UNSTEADY: passed only in the second run: {test}", flush=True)
    return code


def may_run_again(failed: Sequence[str]) -> bool:
    """Whether these tests may have failed for want of a processor."""
    return 0 < len(failed) <= MAX_REPEATED and not any(
        test.startswith(_NEVER_REPEATED) for test in failed
    )


def _pytest(root: Path, options: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(command, cwd=root, check=False).returncode


def _last_failed(root: Path) -> list[str]:
    record = _record(root)
    return list(json.loads(record.read_text())) if record.exists() else []


def _record(root: Path) -> Path:
    """Where pytest keeps the tests that failed last."""
    return root / ".pytest_cache" / "v" / "cache" / "lastfailed"


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
