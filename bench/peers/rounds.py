"""All workloads on all peers: round by round, and within a workload one peer after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from bench.peers.peer import MissingPeer, Peer
from bench.peers.registry import NAMES, find_peer
from bench.peers.results import BUSY_SHARE, PeerInfo, Plan, Results, Run
from bench.peers.run import run
from bench.peers.workloads import WORKLOADS

__all__ = ["run_rounds"]


def run_rounds(
    results: Results, plan: Plan, peers: Sequence[str] = NAMES, workloads: Sequence[str] = ()
) -> None:
    """Measure, and add the runs to the results. A peer that is not installed is left out."""
    present = _present(peers)
    results.plan = plan
    results.peers |= {
        name: PeerInfo(peer.durability, peer.client, peer.versions())
        for name, peer in present.items()
    }
    chosen = workloads or tuple(WORKLOADS)
    for workload in chosen:
        # The runs of other peers stay: they may be in the file that is being completed.
        earlier = results.runs.setdefault(workload, {})
        for name in present:
            earlier.pop(name, None)
    for number in range(plan.rounds):
        for workload in chosen:
            for name, peer in present.items():
                if workload in peer.workloads:
                    done = run(peer, workload, plan)
                    results.runs[workload].setdefault(name, []).append(done)
                    _say(f"round {number + 1}, {workload}, {name}: {_summary(done)}")


def _present(names: Sequence[str]) -> dict[str, type[Peer]]:
    found: dict[str, type[Peer]] = {}
    for name in names:
        try:
            peer = find_peer(name)
            peer.versions()
        except MissingPeer as error:
            _say(f"{name} is left out: {error}")
        else:
            found[name] = peer
    return found


def _summary(done: Run) -> str:
    if done.error:
        return f"failed: {done.error}"
    parts = [] if done.rate is None else [f"{done.rate:,.0f} messages a second"]
    if done.p50_ms is not None and done.p99_ms is not None:
        parts.append(f"{done.p50_ms:.2f} / {done.p99_ms:.2f} ms")
    if done.verdict is not None:
        verdict = done.verdict
        parts.append(f"{verdict.lost} lost, {verdict.duplicates} twice, {verdict.damaged} damaged")
    if done.cost is not None and done.cost.foreign_share > BUSY_SHARE:
        parts.append(f"BUSY: other programs used {done.cost.foreign_share:.0%} of the processors")
    return "; ".join(parts)


def _say(text: str) -> None:
    """Progress, beside the figures: a full run takes most of an hour."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
