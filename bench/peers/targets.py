"""What Penstock has to reach against a peer in the same run, and what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from bench.measuring import Figure
from bench.peers.results import Results, Run

__all__ = ["target_figures"]


def _rate(run: Run) -> float | None:
    return run.rate


def _p50(run: Run) -> float | None:
    return run.p50_ms


def _p99(run: Run) -> float | None:
    return run.p99_ms


def _server_cpu(run: Run) -> float | None:
    return run.server_cpu_us


def _all_cpu(run: Run) -> float | None:
    server, clients = run.server_cpu_us, run.client_cpu_us
    return None if server is None or clients is None else server + clients


class _Target(Struct, frozen=True):
    """``ours`` as a multiple of ``theirs``, a peer or a number."""

    workload: str
    name: str
    value: Callable[[Run], float | None]
    unit: str
    ours: str
    theirs: str | float
    target: float
    at_most: bool = False


def _faster(workload: str, ours: str, theirs: str, target: float) -> _Target:
    return _Target(workload, "rate", _rate, "/s", ours, theirs, target)


_TARGETS: Final = (
    _faster("W1", "penstock", "redis", 0.9),
    _Target("W1", "median latency", _p50, " ms", "penstock", "redis", 1.3, at_most=True),
    _faster("W2", "penstock", "redis", 1.8),
    _faster("W3", "penstock", "redis", 1.8),
    _faster("W4", "penstock", "redis", 1.0),
    _faster("W4", "penstock-consume", "redis", 1.5),
    _faster("W5", "penstock", "redis", 1.3),
    _Target("W6", "median latency", _p50, " ms", "penstock", "redis", 1.5, at_most=True),
    _Target("W6", "p99 latency", _p99, " ms", "penstock", "redis", 1.5, at_most=True),
    _faster("W7", "penstock", "redis", 1.0),
    _faster("W7", "penstock-consume", "redis", 1.3),
    _Target("W1", "server's processor time", _server_cpu, " µs", "penstock", 250, 1, at_most=True),
    _Target("W4", "all processor time", _all_cpu, " µs", "penstock", 45, 1, at_most=True),
    _Target("W6", "server's processor time", _server_cpu, " µs", "penstock", 600, 1, at_most=True),
    *(
        _faster(workload, "penstock-postgresql", "pgmq", 1.2)
        for workload in ("W1", "W2", "W3", "W4", "W5")
    ),
    # At a given rate, faster means sooner.
    _Target(
        "W6", "median latency", _p50, " ms", "penstock-postgresql", "pgmq", 1 / 1.2, at_most=True
    ),
)
#: What is ours, and may lose nothing.
_OURS: Final = ("penstock", "penstock-consume", "penstock-postgresql")


def target_figures(results: Results) -> list[Figure]:
    """The targets of what was measured."""
    figures = [figure for target in _TARGETS if (figure := _figure(results, target)) is not None]
    return [*figures, *_nothing_is_lost(results)]


def _figure(results: Results, target: _Target) -> Figure | None:
    ours = results.median(target.workload, target.ours, target.value)
    if isinstance(target.theirs, str):
        theirs = results.median(target.workload, target.theirs, target.value)
    else:
        theirs = float(target.theirs)
    if ours is None or not theirs:
        return None
    return Figure(
        f"{target.workload}: {target.name} of {target.ours}, of {target.theirs}"
        + ("" if isinstance(target.theirs, str) else target.unit),
        ours / theirs,
        target.target,
        f"{ours:,.2f}{target.unit}",
        f"{theirs:,.2f}{target.unit}",
        at_most=target.at_most,
    )


def _nothing_is_lost(results: Results) -> Iterator[Figure]:
    for peer in _OURS:
        runs = [run for runs in results.runs.values() for run in runs.get(peer, ())]
        verdicts = [run.verdict for run in runs if run.verdict is not None]
        if not verdicts:
            continue
        lost = sum(verdict.lost + verdict.damaged for verdict in verdicts)
        again = sum(run.settled_again for run in runs)
        yield Figure(
            f"messages of {peer} that were lost, damaged, or delivered again after their ack",
            lost + again,
            0.0,
            f"{lost} lost or damaged, {again} again",
            f"{sum(verdict.confirmed for verdict in verdicts):,} confirmed",
            at_most=True,
        )
