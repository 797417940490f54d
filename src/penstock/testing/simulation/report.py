"""One report on many seeds: what was run, how different the runs were, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, field

from penstock.testing.simulation.program import Program, random_program
from penstock.testing.simulation.shrink import shrink

__all__ = ["Failure", "Outcome", "Report", "Runner", "Simulation", "simulate"]


class Outcome(Struct, frozen=True):
    """The result of one run."""

    violations: tuple[str, ...]
    trace: str
    """A digest of the interleaving; equal digests are equal runs."""
    turns: int
    """Callbacks, statements or other operations that the seed ordered."""
    verbs: dict[str, int] = {}
    faults: dict[str, int] = {}
    """How often each kind of fault or restart occurred."""


#: Runs one program to its end, including all checks.
Runner: TypeAlias = Callable[[Program], Outcome]


class Simulation(Struct, frozen=True):
    """The simulation of one engine family."""

    run: Runner
    fault_kinds: tuple[str, ...]
    """The kinds of faults that programs may contain."""

    def program(self, seed: int, steps: int) -> Program:
        """The program of a seed."""
        return random_program(seed, steps, self.fault_kinds)


class Failure(Struct, frozen=True):
    """A seed whose run broke a law."""

    seed: int
    violations: tuple[str, ...]
    shortest: Program
    """The shortest part of its program that still fails."""
    shortest_violations: tuple[str, ...]


class Report(Struct):
    """The results of a simulation of many seeds."""

    seeds: int = 0
    steps: int = 0
    turns: int = 0
    traces: set[str] = field(default_factory=set)
    verbs: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def interleavings(self) -> int:
        """The number of distinct runs."""
        return len(self.traces)

    def add(self, program: Program, outcome: Outcome) -> None:
        """Count one run."""
        self.seeds += 1
        self.steps += program.steps
        self.turns += outcome.turns
        self.traces.add(outcome.trace)
        self.verbs.update(outcome.verbs)
        self.faults.update(outcome.faults)


def simulate(
    simulation: Simulation,
    *,
    first_seed: int,
    seeds: int,
    steps: int,
    max_failures: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Run ``seeds`` seeds from ``first_seed`` on; stop at ``max_failures`` failing ones."""
    report = Report()
    for seed in range(first_seed, first_seed + seeds):
        program = simulation.program(seed, steps)
        outcome = simulation.run(program)
        report.add(program, outcome)
        progress(report.seeds)
        if outcome.violations:
            report.failures.append(_explain(simulation, program, outcome))
            if len(report.failures) >= max_failures:
                break
    return report


def _explain(simulation: Simulation, program: Program, outcome: Outcome) -> Failure:
    """Shrink a failing program."""
    shortest = shrink(program, lambda shorter: bool(simulation.run(shorter).violations))
    again = simulation.run(shortest)
    return Failure(program.seed, outcome.violations, shortest, again.violations)
