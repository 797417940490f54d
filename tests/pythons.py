"""Run the quick suite from the wheel, in a new environment of each Python that the machine has.

And the tests of the integrations, which find other versions of their libraries there than those of
the test environment: Django 6 needs Python 3.12.

``python -m tests.pythons [INTERPRETER]…`` (``make pythons``): without arguments, of each supported
version the first interpreter on the PATH or below ``~/.pyenv/versions``. The environments are in
``build/pythons``. A package that a version cannot install is listed, and fails the run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packaging.version import Version

from tests.service.environments import PIP, ROOT, build_wheel

__all__ = ["interpreters", "supported_versions", "version_of"]

FOLDER: Final = ROOT / "build" / "pythons"
#: What `make quick` runs.
QUICK: Final = (
    "-m",
    "not slow and not processes",
    "tests/unit",
    "tests/conformance/test_memory.py",
)
#: Airflow has an environment of its own.
INTEGRATIONS: Final = ("tests/integrations", "--ignore", "tests/integrations/test_airflow.py")
_CLASSIFIER: Final = re.compile(r"Programming Language :: Python :: (3\.\d+)")
#: A pyenv that has no such version answers with an error.
_ANSWER_S: Final = 20


def supported_versions() -> list[str]:
    """The versions that ``pyproject.toml`` names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [found[1] for text in project["classifiers"] if (found := _CLASSIFIER.fullmatch(text))]


def version_of(interpreter: str | Path) -> str | None:
    """``3.12``; None if it does not run, or cannot make environments."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [interpreter, "-c", code], capture_output=True, text=True, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def interpreters() -> dict[str, Path]:
    """Of each supported version the first interpreter that runs."""
    found: dict[str, Path] = {}
    for version in supported_versions():
        for candidate in _candidates(version):
            if version_of(candidate) == version:
                found[version] = candidate
                break
    return found


def _candidates(version: str) -> Iterator[Path]:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield Path(sys.executable)
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    releases = (path for path in folder.glob(f"{version}.*") if _is_release(path.name))
    for path in sorted(releases, key=lambda path: Version(path.name), reverse=True):
        yield path / "bin" / "python"


def _is_release(name: str) -> bool:
    return re.fullmatch(r"3\.\d+\.\d+", name) is not None


def make_environment(interpreter: Path, home: Path) -> Path:
    """An empty environment; returns its interpreter. The pip of the tests installs into it."""
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", "--without-pip", home], check=True)
    return home / "bin" / "python"


def install(python: Path, *requirements: str) -> bool:
    """Install the requirements; returns whether pip could."""
    command = [*PIP, "--python", str(python), "install", "--prefer-binary", *requirements]
    return subprocess.run(command).returncode == 0


def _extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    mine = re.compile(r"penstock\[")
    return [item for item in project["optional-dependencies"]["dev"] if not mine.match(item)]


def _run(version: str, interpreter: Path, wheel: Path, options: Sequence[str]) -> bool:
    begun = time.monotonic()
    python = make_environment(interpreter, FOLDER / version)
    missing: list[str] = []
    if not install(python, f"{wheel}[dev]"):
        # One of them cannot be installed: install all others.
        missing = [item for item in _extras() if not install(python, item)]
        if not install(python, f"{wheel}[all,django,dramatiq,fastapi,taskiq]"):
            missing.append("the extras")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-m", "pytest", "-q", "-n", str(os.cpu_count()), *options]
    codes = [
        subprocess.run([*command, *tests], cwd=ROOT, env=environment).returncode
        for tests in (QUICK, INTEGRATIONS)
    ]
    passed = codes == [0, 0]
    took = time.monotonic() - begun
    print(f"== Python {version} ({interpreter}): {'passed' if passed else 'FAILED'}, {took:.0f} s")
    print("".join(f"   not installed: {item}\n" for item in missing), end="", flush=True)
    return passed and not missing


def main(arguments: Sequence[str]) -> int:
    """Run the suite on the interpreters that are given, or on all that are found."""
    given = [Path(item) for item in arguments if not item.startswith("-")]
    options = [item for item in arguments if item.startswith("-")]
    chosen = {version_of(path) or str(path): path for path in given} or interpreters()
    for version in sorted(set(supported_versions()) - set(chosen)):
        print(f"== Python {version}: not on this machine")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("penstock-*"):
        old.unlink()
    wheel = build_wheel(FOLDER)
    passed = [_run(version, path, wheel, options) for version, path in chosen.items()]
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
