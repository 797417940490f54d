"""Starting: a program that imports Penstock, one that connects, and a server."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.measuring import Figure, middle, scratch, seconds_figure
from bench.processes import penstock_server

__all__ = ["startup"]

IMPORT_S = 0.05
CONNECT_S = 0.25
SERVE_S = 1.0
#: Prints how long it took, without the start of Python itself.
_TIMED = "import time; begin = time.perf_counter(); {}; print(time.perf_counter() - begin)"


def startup(rounds: int) -> list[Figure]:
    """From the first line of a program, and from the command to the first reply."""
    return [
        seconds_figure("`import penstock`", _median("import penstock", rounds), IMPORT_S),
        seconds_figure(
            "`from penstock import connect`",
            _median("from penstock import connect", rounds),
            CONNECT_S,
        ),
        seconds_figure("start of `penstock serve`", middle(_serve(rounds)), SERVE_S),
    ]


def _median(statement: str, rounds: int) -> float:
    command = [sys.executable, "-c", _TIMED.format(statement)]
    outputs = [
        subprocess.run(command, check=True, capture_output=True).stdout for _ in range(rounds)
    ]
    return middle([float(output) for output in outputs])


def _serve(rounds: int) -> list[float]:
    taken = []
    for _ in range(rounds):
        with scratch() as folder:
            begin = time.perf_counter()
            with penstock_server(folder):
                taken.append(time.perf_counter() - begin)
    return taken
