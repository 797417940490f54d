"""Tables of the results, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from bench.measuring import Figure
from bench.peers.registry import NAMES
from bench.peers.results import BUSY_SHARE, PeerInfo, Results, Run
from bench.peers.workloads import WORKLOADS

__all__ = ["comparison", "figures_table", "machine_line", "peers_tables"]

#: Those whose result is a rate.
_RATES: Final = ("W1", "W2", "W3", "W4", "W5", "W7")
#: Those whose latency says something: without a queue of messages that wait.
_LATENCIES: Final = ("W1", "W2", "W3", "W6")
_COSTS: Final = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")
_NONE: Final = "-"
#: Ours, that a peer is compared with.
_COUNTERPARTS: Final = {
    "redis": "penstock",
    "rabbitmq": "penstock",
    "beanstalkd": "penstock",
    "celery": "penstock",
    "pgmq": "penstock-postgresql",
    "floor": "penstock",
    "floor-uvloop": "penstock",
}
_RATE_CAPTION: Final = (
    "Messages per second. In brackets: Penstock's rate as a multiple of the peer's."
)
_LATENCY_CAPTION: Final = (
    "Latency in milliseconds, median / 99th percentile: of a publish call (W1, W2, and W3 with its"
    " 100 messages), and from the publish call to the handler (W6)."
)
_COST_CAPTION: Final = (
    "Processor seconds per million messages, server + clients. In brackets: disk flushes per"
    " thousand messages."
)
_REST_CAPTION: Final = (
    "Memory of the server, empty and with the messages of W7 waiting; messages lost, and settled"
    " messages delivered again, after a SIGKILL (W8)."
)

Value: TypeAlias = Callable[[Run], float | None]


def peers_tables(results: Results) -> str:
    """Everything that was measured on the peers."""
    peers = [name for name in NAMES if name in results.peers]
    sections = (
        (
            _RATE_CAPTION,
            ("peer", *_RATES),
            [[peer, *(_rate(results, peer, work) for work in _RATES)] for peer in peers],
        ),
        (
            _LATENCY_CAPTION,
            ("peer", *_LATENCIES),
            [[peer, *(_latency(results, peer, work) for work in _LATENCIES)] for peer in peers],
        ),
        (
            _COST_CAPTION,
            ("peer", *_COSTS),
            [[peer, *(_cost(results, peer, work) for work in _COSTS)] for peer in peers],
        ),
        (
            _REST_CAPTION,
            ("peer", "empty", "filled", "waiting", "lost", "settled again"),
            [[peer, *_memory(results, peer), *_crash(results, peer)] for peer in peers],
        ),
        (
            "What was measured:",
            ("peer", "a confirm means", "clients", "versions"),
            [[peer, *_info(results.peers[peer])] for peer in peers],
        ),
    )
    return "\n".join(
        f"{caption}\n\n{_table(head, found)}"
        for caption, head, rows in sections
        if (found := [row for row in rows if set(row[1:]) != {_NONE}])
    )


def comparison(results: Results, columns: dict[str, str], theirs: str, title: str) -> str:
    """Ours, by peer and title of the column, against one peer: a row per workload."""
    head = ["", "workload"]
    for column in columns.values():
        head += [column, "ratio"]
    return _table(
        (*head, title),
        (
            [
                *(name, workload.description),
                *(
                    cell
                    for ours in columns
                    for cell in (
                        _result(results, name, ours),
                        _ratio(_advantage(results, name, ours, theirs)),
                    )
                ),
                _result(results, name, theirs),
            ]
            for name, workload in WORKLOADS.items()
            if results.of_peer(name, theirs)
        ),
    )


def figures_table(figures: Iterable[Figure]) -> str:
    """The figures of other benchmarks."""
    return _table(
        ("figure", "ratio", "target", "measured", "reference"),
        (
            [
                *(figure.name, _ratio(figure.ratio)),
                f"{'at most' if figure.at_most else 'at least'} {figure.target:g}"
                + ("" if figure.holds else ", missed"),
                *(figure.ours, figure.reference),
            ]
            for figure in figures
        ),
    )


def machine_line(results: Results) -> str:
    """Where and when it was measured."""
    machine, plan = results.machine, results.plan
    rounds = "one run each" if plan.rounds == 1 else f"medians of {plan.rounds} runs"
    return (
        f"Measured on {results.date} at revision {results.commit}, {rounds}, {plan.seconds:g} s"
        f" per run: {machine.processor}, {machine.cores} cores, {machine.memory_gb} GB;"
        f" {machine.filesystem}, a write of 1 KiB with fdatasync takes {machine.sync_us} µs;"
        f" {machine.system}, Linux {machine.kernel}, Python {machine.python}.{_busy(results)}\n"
    )


def _busy(results: Results) -> str:
    """A warning, if other programs used the processors meanwhile."""
    runs = [run for peers in results.runs.values() for runs in peers.values() for run in runs]
    shares = [run.cost.foreign_share for run in runs if run.cost is not None]
    busy = sum(share > BUSY_SHARE for share in shares)
    if not busy:
        return ""
    return (
        f" **The machine was busy:** in {busy} of {len(shares)} runs other programs used more than"
        f" {BUSY_SHARE:.0%} of the processors, at most {max(shares):.0%}. The figures are a"
        " placeholder until a quiet run."
    )


# -- cells -------------------------------------------------------------------------------------


def _rate(results: Results, peer: str, workload: str) -> str:
    if failed := _failed(results, peer, workload):
        return failed
    rate = results.median(workload, peer, lambda run: run.rate)
    if rate is None:
        return _NONE
    ours = results.median(workload, _COUNTERPARTS.get(peer, ""), lambda run: run.rate)
    return _thousands(rate) if ours is None else f"{_thousands(rate)} ({_ratio(ours / rate)})"


def _latency(results: Results, peer: str, workload: str) -> str:
    p50 = results.median(workload, peer, lambda run: run.p50_ms)
    p99 = results.median(workload, peer, lambda run: run.p99_ms)
    return _NONE if p50 is None or p99 is None else f"{_short(p50)} / {_short(p99)}"


def _cost(results: Results, peer: str, workload: str) -> str:
    server = results.median(workload, peer, lambda run: run.server_cpu_us)
    clients = results.median(workload, peer, lambda run: run.client_cpu_us)
    flushes = results.median(workload, peer, lambda run: run.flushes_per_thousand)
    if server is None or clients is None or flushes is None:
        return _NONE
    return f"{_short(server)} + {_short(clients)} ({_short(flushes)})"


def _memory(results: Results, peer: str) -> list[str]:
    values: tuple[Value, ...] = (lambda run: run.idle_bytes, lambda run: run.filled_bytes)
    cells = [results.median("W7", peer, value) for value in values]
    waiting = results.median("W7", peer, lambda run: run.waiting)
    return [
        *(_NONE if not cell else f"{cell / 2**20:.0f} MB" for cell in cells),
        _NONE if not waiting else _thousands(waiting),
    ]


def _crash(results: Results, peer: str) -> list[str]:
    runs = [run for run in results.of_peer("W8", peer) if run.verdict is not None]
    if not runs:
        return [_failed(results, peer, "W8") or _NONE, _NONE]
    lost = sum(run.verdict.lost for run in runs if run.verdict)
    return [str(lost), str(sum(run.settled_again for run in runs))]


def _info(peer: PeerInfo) -> list[str]:
    return [peer.durability, peer.client, ", ".join(map(" ".join, peer.versions.items()))]


def _result(results: Results, workload: str, peer: str) -> str:
    """What matters most about a workload, for a reader in a hurry."""
    if failed := _failed(results, peer, workload):
        return failed
    if workload == "W8":
        lost, again = _crash(results, peer)
        return _NONE if lost == _NONE else f"{lost} lost, {again} settled again"
    if workload == "W6":
        latency = _latency(results, peer, workload)
        return latency if latency == _NONE else f"{latency} ms"
    rate = results.median(workload, peer, lambda run: run.rate)
    return _NONE if rate is None else f"{_thousands(rate)}/s"


def _advantage(results: Results, workload: str, ours: str, theirs: str) -> float | None:
    """How many times better: of rates, and of the median latency at a given rate."""
    is_latency = workload == "W6"
    value: Value = (lambda run: run.p50_ms) if is_latency else (lambda run: run.rate)
    mine, other = (results.median(workload, peer, value) for peer in (ours, theirs))
    if mine is None or other is None:
        return None
    return other / mine if is_latency else mine / other


def _failed(results: Results, peer: str, workload: str) -> str:
    runs = results.of_peer(workload, peer)
    return "failed" if runs and all(run.error for run in runs) else ""


# -- layout ------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _short(value: float) -> str:
    """Three digits, or all before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _thousands(value: float) -> str:
    return f"{value:,.0f}"
