"""New environments with Penstock installed from its source distribution, as its users have them.

The packages that the wheel requires are linked from the environment of the tests, exactly those
and nothing else, so that no package index is needed.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ZipPath

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
BUILD_S = 240


def build_wheel(folder: Path) -> Path:
    """The wheel that is made of the source distribution."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, check=True, timeout=BUILD_S, cwd=ROOT, capture_output=True)
    [source] = folder.glob("penstock-*.tar.gz")
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*PIP, "wheel", *options, str(source)], check=True, timeout=BUILD_S)
    [wheel] = folder.glob("penstock-*.whl")
    return wheel


def install(wheel: Path, home: Path, *extras: str) -> set[str]:
    """Make an environment with the wheel, and link what it requires; returns their names."""
    venv.create(home, symlinks=True)
    into = ["--python", str(home / "bin" / "python")]
    options = ["--no-index", "--no-deps", str(wheel)]
    subprocess.run([*PIP, *into, "install", *options], check=True, timeout=BUILD_S)
    [site] = home.glob("lib/python*/site-packages")
    [metadata] = [path for path in ZipPath(wheel).iterdir() if path.name.endswith(".dist-info")]
    penstock = PathDistribution(metadata)
    waiting, found = required(penstock, *extras), set[tuple[str, str]]()
    while waiting:
        name, extra = package = waiting.pop()
        found.add(package)
        # An extra may name another extra of Penstock.
        needed = penstock if name == "penstock" else distribution(name)
        if needed is not penstock:
            link(needed, site)
        waiting |= required(needed, extra) - found
    return {name for name, _ in found}


def required(dist: Distribution, *extras: str) -> set[tuple[str, str]]:
    """The packages that a distribution needs with such extras, and the extra of each."""
    return {
        (item.name.lower(), extra)
        for item in map(Requirement, dist.requires or ())
        if item.marker is None
        or any(item.marker.evaluate({"extra": extra}) for extra in extras or ("",))
        for extra in item.extras or ("",)
    }


def link(dist: Distribution, site: Path) -> None:
    """Link whole packages: linking their files would take longer than the tests."""
    root = Path(str(dist.locate_file("")))
    for name in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
        if not (site / name).exists():
            (site / name).symlink_to(root / name)
