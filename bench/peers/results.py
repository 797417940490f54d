"""What was measured: runs, by workload and peer, with the machine that they ran on.

A file in ``bench/results`` holds every run, so that medians and tables can be made from it again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from msgspec import Struct

from bench.machine import Machine
from bench.measuring import Figure, scratch
from bench.peers.cost import Cost
from bench.peers.probe import Verdict

__all__ = ["BUSY_SHARE", "FOLDER", "PeerInfo", "Plan", "Results", "Run", "newest_results"]

#: More than this of all processors, and a run says more about the other programs.
BUSY_SHARE: Final = 0.08
FOLDER: Final = Path(__file__).parents[1] / "results"


class Plan(Struct, frozen=True, kw_only=True):
    """How much is measured."""

    #: The median of so many runs counts.
    rounds: int = 5
    seconds: float = 3.0
    warm_up_s: float = 1.0
    #: Messages that wait in W7.
    waiting: int = 300_000


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of one workload on one peer."""

    #: Why there is no result.
    error: str = ""
    #: Messages that were acked, or published where there is no consumer, while it was measured.
    messages: int = 0
    cost: Cost | None = None
    #: Of a publish call; with a consumer, from the publish call to the handler.
    p50_ms: float | None = None
    p99_ms: float | None = None
    #: Of all messages, if there is a consumer.
    verdict: Verdict | None = None
    #: W7: messages that waited, and the server's memory before and then.
    waiting: int = 0
    idle_bytes: int = 0
    filled_bytes: int = 0
    #: W8: settled before the kill, and received after it.
    settled_again: int = 0

    @property
    def rate(self) -> float | None:
        """Messages per second."""
        return self.messages / self.cost.seconds if self.cost and self.messages else None

    @property
    def server_cpu_us(self) -> float | None:
        """Processor time per message, in microseconds: the same number as seconds per million."""
        return self._per_message(lambda cost: cost.server_cpu_s * 1e6)

    @property
    def client_cpu_us(self) -> float | None:
        return self._per_message(lambda cost: cost.client_cpu_s * 1e6)

    @property
    def flushes_per_thousand(self) -> float | None:
        return self._per_message(lambda cost: cost.flushes * 1000.0)

    def _per_message(self, value: Callable[[Cost], float]) -> float | None:
        return value(self.cost) / self.messages if self.cost and self.messages else None


class PeerInfo(Struct, frozen=True):
    """What was measured as a peer."""

    durability: str
    client: str
    versions: dict[str, str]


class Results(Struct, kw_only=True):
    """One file."""

    date: str
    #: The revision of this repository.
    commit: str
    machine: Machine
    plan: Plan = Plan()
    peers: dict[str, PeerInfo] = {}
    #: By workload, then by peer: one run per round.
    runs: dict[str, dict[str, list[Run]]] = {}
    #: Of the other benchmarks, by part.
    figures: dict[str, list[Figure]] = {}

    def median(
        self, workload: str, peer: str, value: Callable[[Run], float | None]
    ) -> float | None:
        """The median over the rounds that have the value; None if none has."""
        runs = self.of_peer(workload, peer)
        values = [found for run in runs if (found := value(run)) is not None]
        return median(values) if values else None

    def of_peer(self, workload: str, peer: str) -> Sequence[Run]:
        return self.runs.get(workload, {}).get(peer, [])

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        encoded = msgspec.json.format(msgspec.json.encode(self), indent=1)
        path.write_bytes(encoded + b"\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        return msgspec.json.decode(path.read_bytes(), type=cls)

    @classmethod
    def open(cls, path: Path | None) -> Results:
        """New results; if there is a file, with those in it that are not measured again."""
        with scratch() as folder:
            machine = Machine.describe(folder)
        new = cls(date=datetime.now(UTC).date().isoformat(), commit=_commit(), machine=machine)
        if path is not None and path.exists():
            old = cls.load(path)
            new.plan, new.peers, new.runs, new.figures = old.plan, old.peers, old.runs, old.figures
        return new


def newest_results() -> Results:
    """The last file by name: names begin with the date."""
    return Results.load(max(FOLDER.glob("*.json")))


def _commit() -> str:
    """The revision of the repository, marked if files have been changed since."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=FOLDER.parent,
        check=False,
        capture_output=True,
        text=True,
    )
    return said.stdout.strip() or "unknown"
