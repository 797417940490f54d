"""Kills every job at every step; ``python -m bench.job_kills --help``."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from bench.job_kills.host import Ended, JobHost, job_host
from bench.job_kills.scenarios import SCENARIOS, Count, Scenario
from bench.measuring import scratch

__all__ = ["Result", "kill_job"]

KILLS: Final = 100
#: Kills before a run may end; then the count is taken.
_PER_CYCLE: Final = 8
#: Every so often the moment of a kill is random, instead of a step.
_RANDOM_EVERY: Final = 3


class Result(Struct, frozen=True):
    """What the kills of a job left."""

    job: str
    kills: int
    cycles: int
    steps: int
    """Of a run that is not killed."""
    reached: int
    """Different steps at which it was killed."""
    at_random: int
    rows: int
    lost: int
    doubled: int

    @property
    def holds(self) -> bool:
        """Whether nothing is missing or doubled."""
        return not self.lost and not self.doubled


def kill_job(host: JobHost, folder: Path, name: str, kills: int, seed: int = 7) -> Result:
    """Kill one job so often, in cycles of some kills and a run that ends."""
    scenario = SCENARIOS[name](host, folder)
    try:
        return _Kills(host, scenario, kills, random.Random(seed)).run()
    finally:
        scenario.close()


class _Kills:
    def __init__(
        self, host: JobHost, scenario: Scenario, kills: int, chance: random.Random
    ) -> None:
        self._host, self._scenario, self._wanted, self._chance = host, scenario, kills, chance
        self._kills = self._cycles = self._at_random = 0
        self._reached: set[int] = set()
        self._total = Count()

    def run(self) -> Result:
        scenario = self._scenario
        # The first run is warm-up, the second shows how many steps there are.
        self._run_in_peace()
        peaceful = self._run_in_peace()
        order = list(range(1, peaceful.steps + 1))
        self._chance.shuffle(order)
        number = 0
        while self._kills < self._wanted:
            scenario.begin()
            for _ in range(_PER_CYCLE):
                if self._kills == self._wanted or not self._kill(order, number, peaceful.seconds):
                    break
                number += 1
                scenario.between()
            else:
                self._finish()
                continue
            number += 1
            self._finish()
        return Result(
            scenario.name,
            self._kills,
            self._cycles,
            peaceful.steps,
            len(self._reached),
            self._at_random,
            self._total.rows,
            self._total.lost,
            self._total.doubled,
        )

    def _run_in_peace(self) -> Ended:
        self._scenario.begin()
        ended = self._host.run(self._scenario.order())
        self._total += self._scenario.count()
        return ended

    def _kill(self, order: list[int], number: int, seconds: float) -> bool:
        """Run the job up to a step, or for a random time; False if it ended before."""
        is_random = number % _RANDOM_EVERY == _RANDOM_EVERY - 1
        step = order[number % len(order)]
        wait_s = self._chance.uniform(0.2, 1.0) * seconds if is_random else None
        ended = self._host.run(self._scenario.order(None if is_random else step), wait_s)
        if ended.is_killed:
            self._kills += 1
            if is_random:
                self._at_random += 1
            else:
                self._reached.add(step)
        return ended.is_killed

    def _finish(self) -> None:
        """Let a run end, and count."""
        self._host.run(self._scenario.order())
        self._cycles += 1
        count = self._scenario.count()
        if count.lost or count.doubled:
            sys.stderr.write(
                f"{self._scenario.name}, cycle {self._cycles}: {count.lost} lost, "
                f"{count.doubled} doubled\n"
            )
        self._total += count


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 1 if a row is missing or doubled."""
    parser = argparse.ArgumentParser(prog="python -m bench.job_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--job", action="append", choices=sorted(SCENARIOS))
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args(arguments)
    good = True
    with scratch() as folder, job_host(folder) as host:
        for name in given.job or SCENARIOS:
            begin = time.monotonic()
            try:
                result = kill_job(host, folder / name, name, given.kills, given.seed)
            except AssertionError as error:
                good = False
                sys.stdout.write(f"{name:12} FAILED: {error}\n")
                sys.stdout.flush()
                continue
            good = good and result.holds
            sys.stdout.write(
                f"{result.job:12} {result.kills} kills ({result.at_random} at random moments, the "
                f"others at {result.reached} of {result.steps} steps), {result.cycles} runs to the "
                f"end, {result.rows:,} rows: {result.lost} lost, {result.doubled} doubled; "
                f"{time.monotonic() - begin:.0f} s\n"
            )
            sys.stdout.flush()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
