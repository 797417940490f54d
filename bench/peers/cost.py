"""What a run costs, from /proc: processor time by process tree, memory, and work of the disk.

The disk's counters are those of the whole device, and the processor time of all other processes is
counted as well: a run on a busy machine shows that it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

__all__ = ["Cost", "Meter", "memory_bytes", "process_tree"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES: Final = 512
#: The parent of the kernel's threads. They work for the benchmark, as far as anyone can tell.
_KERNEL: Final = 2


class Cost(Struct, frozen=True):
    """The difference between two readings."""

    seconds: float
    server_cpu_s: float
    client_cpu_s: float
    #: Processor time of other programs, as a share of all processors.
    foreign_share: float
    flushes: int
    disk_bytes: int


class _Process(Struct, frozen=True):
    parent: int
    cpu_s: float


class _Reading(Struct, frozen=True):
    at: float
    server_cpu_s: float
    client_cpu_s: float
    foreign_cpu_s: float
    flushes: int
    disk_bytes: int


class Meter:
    """Reads what the server and the clients, with all their children, have used so far."""

    def __init__(self, servers: Collection[int], clients: Collection[int], folder: Path) -> None:
        self._servers = servers
        self._clients = clients
        self._device = os.stat(folder).st_dev

    def read(self) -> _Reading:
        processes = _processes()
        servers = process_tree(self._servers, processes)
        clients = process_tree(self._clients, processes)
        known = servers | clients | {os.getpid(), _KERNEL}
        foreign = (
            process.cpu_s
            for pid, process in processes.items()
            if pid not in known and process.parent != _KERNEL
        )
        flushes, disk_bytes = _disk(self._device)
        return _Reading(
            at=time.monotonic(),
            server_cpu_s=sum(processes[pid].cpu_s for pid in servers),
            client_cpu_s=sum(processes[pid].cpu_s for pid in clients),
            foreign_cpu_s=sum(foreign),
            flushes=flushes,
            disk_bytes=disk_bytes,
        )

    def cost_since(self, begin: _Reading) -> Cost:
        end = self.read()
        seconds = end.at - begin.at
        foreign = max(0.0, end.foreign_cpu_s - begin.foreign_cpu_s)
        return Cost(
            seconds=seconds,
            server_cpu_s=end.server_cpu_s - begin.server_cpu_s,
            client_cpu_s=end.client_cpu_s - begin.client_cpu_s,
            foreign_share=foreign / seconds / (os.cpu_count() or 1),
            flushes=end.flushes - begin.flushes,
            disk_bytes=end.disk_bytes - begin.disk_bytes,
        )


def process_tree(roots: Iterable[int], processes: Mapping[int, _Process] | None = None) -> set[int]:
    """The roots that run, and all their descendants."""
    processes = _processes() if processes is None else processes
    found = {pid for pid in roots if pid in processes}
    while True:
        more = {pid for pid, process in processes.items() if process.parent in found} - found
        if not more:
            return found
        found |= more


def memory_bytes(roots: Iterable[int]) -> int:
    """The proportional set size of a tree: a page that several processes share counts once."""
    total = 0
    for pid in process_tree(roots):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # It has ended.
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def _processes() -> dict[int, _Process]:
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        # Including children that have ended.
        found[int(name)] = _Process(int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)
    return found


def _disk(device: int) -> tuple[int, int]:
    """Flushes and written bytes of the device since the machine started; 0 if it is no disk."""
    numbers = (str(os.major(device)), str(os.minor(device)))
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if tuple(fields[:2]) == numbers:
            # The kernel counts flushes since version 5.5.
            flushes = int(fields[18]) if len(fields) > 18 else 0
            return flushes, int(fields[9]) * _SECTOR_BYTES
    return 0, 0
