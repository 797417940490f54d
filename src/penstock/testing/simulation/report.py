"""Many seeds, one report: what was run, how different the runs were, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, field

from penstock.testing.simulation.program import Program, random_program
from penstock.testing.simulation.shrink import shrink

__all__ = ["Failure", "Outcome", "Report", "Runner", "Simulation", "simulate"]


class Outcome(Struct, frozen=True):
    """What one run did."""

    violations: tuple[str, ...]
    trace: str
    """A digest of the interleaving; equal digests are equal runs."""
    turns: int
    """Callbacks, statements or whatever else the seed put in order."""
    verbs: dict[str, int] = {}
    faults: dict[str, int] = {}
    """How often each kind of fault struck, or each kind of restart happened."""


#: Runs one program to its end, with everything that has to hold checked.
Runner: TypeAlias = Callable[[Program], Outcome]


class Simulation(Struct, frozen=True):
    """One engine family as it is simulated."""

    run: Runner
    fault_kinds: tuple[str, ...]
    """What may go wrong; a program names them."""

    def program(self, seed: int, steps: int) -> Program:
        """The program of a seed."""
        return random_program(seed, steps, self.fault_kinds)


class Failure(Struct, frozen=True):
    """A seed that broke a law."""

    seed: int
    violations: tuple[str, ...]
    shortest: Program
    """The shortest part of its program that was found to fail."""
    shortest_violations: tuple[str, ...]


class Report(Struct):
    """What a simulation of many seeds found."""

    seeds: int = 0
    steps: int = 0
    turns: int = 0
    traces: set[str] = field(default_factory=set)
    verbs: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def interleavings(self) -> int:
        """How many of the runs were different from all others."""
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
