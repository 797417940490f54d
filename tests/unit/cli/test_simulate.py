from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from penstock.cli.exits import Exit
from penstock.cli.program import program
from penstock.testing.laws import law
from penstock.testing.simulation import engines
from penstock.testing.simulation.program import Program
from penstock.testing.simulation.report import Outcome, Simulation


def _broken(program: Program) -> Outcome:
    """An engine that breaks a law whenever a purge is among the steps."""
    purges = [step for steps in program.clients for step in steps if step.verb == "purge"]
    return Outcome(("Q2: counts differ",) if purges else (), str(program.seed), 1)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(_broken, ("kill",))
    monkeypatch.setattr(engines, "simulation_of", lambda _: simulation)


def test_a_sound_engine_is_reported_and_ends_with_0() -> None:
    result = CliRunner().invoke(program, ["simulate", "--seeds", "2", "--steps", "10", "--json"])
    assert result.exit_code == Exit.OK
    report = json.loads(result.stdout)
    assert (report["seeds"], report["steps"], report["failures"]) == (2, 20, [])
    assert report["interleavings"] == 2


@pytest.mark.usefixtures("broken")
def test_a_failing_seed_is_printed_with_what_repeats_it() -> None:
    result = CliRunner().invoke(program, ["simulate", "--seeds", "50", "--steps", "40"])
    assert result.exit_code == Exit.VIOLATIONS
    assert "Q2: counts differ" in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("repeat it: ")]
    again = CliRunner().invoke(program, line.removeprefix("repeat it: penstock ").split())
    assert again.exit_code == Exit.VIOLATIONS
    assert line in again.stdout
    shortest = result.stdout.split("found to fail:\n")[1]
    assert shortest.count("(") == shortest.count("purge(") == 1


def test_an_unknown_engine_is_a_usage_error() -> None:
    result = CliRunner().invoke(program, ["simulate", "--engine", "none"])
    assert result.exit_code == Exit.USAGE
    assert "keyvalue" in result.output


@law("E1")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--engine", "postgresql"],
        ["--engine", "mysql", "--store", "postgresql://me@db/empty"],
        ["--engine", "keyvalue", "--store", "postgresql://me@db/empty"],
        ["--engine", "slatedb", "--store", "postgresql://me@db/empty"],
        ["--engine", "slatedb", "--store", "slatedb+file:///tmp/empty"],
        ["--engine", "slatedb", "--store", "slatedb+s3://bucket/path?reader=true"],
        ["--engine", "files", "--store", "slatedb+s3://bucket/path"],
    ],
)
def test_an_engine_refuses_a_store_of_another_kind(arguments: list[str]) -> None:
    result = CliRunner().invoke(program, ["simulate", *arguments, "--seeds", "1"])
    assert result.exit_code not in (Exit.OK, Exit.VIOLATIONS)
    assert "store" in result.output
