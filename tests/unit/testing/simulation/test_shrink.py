from __future__ import annotations

from penstock.testing.simulation.program import Fault, Program, Step, random_program
from penstock.testing.simulation.shrink import shrink

FAULTS = ("kill", "restart")


def _verbs(program: Program) -> list[str]:
    return [step.verb for steps in program.clients for step in steps]


def test_a_program_is_a_function_of_its_seed() -> None:
    assert random_program(5, 60, FAULTS) == random_program(5, 60, FAULTS)
    assert random_program(5, 60, FAULTS) != random_program(6, 60, FAULTS)
    assert random_program(5, 60, FAULTS).steps == 60


def test_only_what_fails_is_left() -> None:
    step, other = Step("purge", {}), Step("claim", {}, cancel_after=3)
    program = Program(
        1,
        ((other,) * 9 + (step,) + (other,) * 4, (other,) * 7, (other, step, other)),
        (Fault("kill", 3), Fault("restart", 9)),
    )

    def fails(candidate: Program) -> bool:
        return _verbs(candidate).count("purge") == 2 and len(candidate.faults) >= 1

    shortest = shrink(program, fails)
    assert _verbs(shortest) == ["purge", "purge"]
    assert len(shortest.faults) == 1
    assert shortest.seed == program.seed


def test_shrinking_is_bounded() -> None:
    program = random_program(3, 50, FAULTS)
    runs: list[Program] = []

    def fails(candidate: Program) -> bool:
        runs.append(candidate)
        return False

    assert shrink(program, fails, trials=10) == program
    assert len(runs) == 10


def test_a_program_reads_as_a_list_of_steps() -> None:
    program = Program(9, ((Step("sweep", {"limit": 1}),), ()), (Fault("kill", 1),))
    assert str(program) == (
        "seed 9\n  fault: kill when 1 steps have begun\n"
        "  client 0:\n    sweep(limit=1)\n  client 1:"
    )
