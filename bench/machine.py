"""The machine that benchmarks run on, as results describe it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import Struct

__all__ = ["Machine"]

_SYNCS: Final = 500
_SYNC_BYTES: Final = 1024


class Machine(Struct, frozen=True):
    """What a figure depends on besides the code."""

    processor: str
    cores: int
    memory_gb: int
    #: The median time to append 1 KiB to a file and sync it.
    sync_us: int
    filesystem: str
    system: str
    kernel: str
    python: str

    @classmethod
    def describe(cls, folder: Path) -> Machine:
        """This machine, with the disk of the folder."""
        return cls(
            processor=_first("/proc/cpuinfo", "model name", ":") or platform.machine(),
            cores=os.cpu_count() or 1,
            memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            sync_us=_sync_us(folder),
            filesystem=_filesystem(folder),
            system=_first("/etc/os-release", "PRETTY_NAME", "=").strip('"') or platform.system(),
            kernel=platform.release(),
            python=platform.python_version(),
        )


def _first(path: str, key: str, separator: str) -> str:
    """The first value of the key in a file of lines; empty if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    values = (line.partition(separator) for line in lines)
    return next((value.strip() for name, _, value in values if name.strip() == key), "")


def _filesystem(folder: Path) -> str:
    """The type of the file system with the longest mount point above the folder."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = {str(path) for path in (folder.resolve(), *folder.resolve().parents)}
    return max((len(point), kind) for point, kind in mounts if point in above)[1]


def _sync_us(folder: Path) -> int:
    path = folder / "sync"
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            begin = time.perf_counter()
            file.write(os.urandom(_SYNC_BYTES))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begin)
    path.unlink()
    return round(median(taken) * 1e6)
