"""Copies of a store that an engine in this process has open, as a kill would leave it."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

#: Files that change or vanish at any moment and mean nothing to whoever opens the copy.
PASSING = {"LOG", "PENSTOCK.tmp"}


def copy_store(store: Path, path: Path) -> Path:
    """Copy the folder; again if the store was at work in it meanwhile."""
    for _ in range(100):
        with contextlib.suppress(OSError, shutil.Error):
            before = _listing(store)
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(store, path, symlinks=True)
            if before == _listing(store) == _listing(path):
                return path
    raise AssertionError("the store does not come to rest")


def _listing(folder: Path) -> list[tuple[str, int]]:
    files = (path for path in folder.rglob("*") if path.name not in PASSING)
    return sorted(
        (str(path.relative_to(folder)), path.stat().st_size) for path in files if path.is_file()
    )
