"""Shrinking: finds a short part of a failing program that still fails.

It removes clients first, then faults, then ranges of steps, the largest part first each time. The
seed stays, so a shorter program is as repeatable as the first. Removing a step changes the later
schedule, so the result is small but not minimal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from penstock.testing.simulation.program import Program

__all__ = ["shrink"]

#: The most runs that shrinking may use.
MAX_TRIALS: Final = 600


def shrink(
    program: Program, fails: Callable[[Program], bool], *, trials: int = MAX_TRIALS
) -> Program:
    """Shorten ``program`` as long as ``fails`` is true for the rest."""
    smallest = program
    left = trials
    progress = True
    while progress and left > 0:
        progress = False
        for shorter in _shorter(smallest):
            if left <= 0:
                break
            left -= 1
            if fails(shorter):
                smallest = shorter
                progress = True
                break
    return smallest


def _shorter(program: Program) -> Iterator[Program]:
    """Programs with something left out, largest omissions first."""
    for number, steps in enumerate(program.clients):
        if steps:
            yield _with_client(program, number, 0, len(steps))
    for number in range(len(program.faults)):
        faults = program.faults[:number] + program.faults[number + 1 :]
        yield replace(program, faults=faults)
    longest = max(map(len, program.clients), default=0)
    size = longest // 2
    while size:
        for number, steps in enumerate(program.clients):
            for start in range(0, len(steps), size):
                if len(steps) > size:
                    yield _with_client(program, number, start, start + size)
        size //= 2
    for number, steps in enumerate(program.clients):
        for place, step in enumerate(steps):
            if step.cancel_after is not None:
                kept = (*steps[:place], replace(step, cancel_after=None), *steps[place + 1 :])
                clients = (*program.clients[:number], kept, *program.clients[number + 1 :])
                yield replace(program, clients=clients)


def _with_client(program: Program, number: int, start: int, end: int) -> Program:
    """Remove steps ``start`` to ``end`` - 1 of one client; other clients keep their numbers."""
    steps = program.clients[number]
    kept = steps[:start] + steps[end:]
    clients = (*program.clients[:number], kept, *program.clients[number + 1 :])
    return replace(program, clients=clients)
