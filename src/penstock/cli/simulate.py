"""``penstock simulate``: runs clients, faults and restarts in interleavings chosen by a seed.

It needs no server, and a store only to simulate servers on a database or a store in a bucket. It
is the only command that imports ``penstock.testing``, and only when it runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli import printing
from penstock.cli.amounts import Parsed
from penstock.cli.exits import Exit
from penstock.cli.options import choices, printing_options
from penstock.cli.progress import meter
from penstock.model.secrets import mask_password

if TYPE_CHECKING:
    from penstock.testing.simulation.report import Report

__all__ = ["simulate"]


def _to_engine(name: str) -> str:
    from penstock.testing.simulation.engines import ENGINES  # noqa: PLC0415  (when it is used)

    if name not in ENGINES:
        raise ValueError(f"{name!r} is not one of {', '.join(ENGINES)}.")
    return name


@click.command
@click.option(
    "--engine",
    type=Parsed("engine", _to_engine),
    default="keyvalue",
    show_default=True,
    help="The engine family to simulate.",
)
@click.option(
    "--store",
    metavar="URL",
    help="An empty database, for the engines postgresql and mysql; a bucket, for slatedb.",
)
@click.option(
    "--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many to run."
)
@click.option(
    "--steps", type=click.IntRange(5), default=60, show_default=True, help="Total client steps."
)
@click.option(
    "--first-seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The seed to start with.",
)
@printing_options
def simulate(engine: str, store: str | None, seeds: int, steps: int, first_seed: int) -> None:
    """Run clients, faults and restarts in random interleavings.

    Every seed is a different program and interleaving, and is reproducible. The first seed that
    breaks a law is minimized and printed with the command that reproduces it, and the exit code
    is 9.

    \b
    Examples:
      penstock simulate --seeds 1000
      penstock simulate --engine keyvalue --first-seed 4711 --seeds 1 --steps 60
      penstock simulate --engine postgresql --store postgresql://me@localhost/empty --steps 20
      penstock simulate --engine slatedb --store slatedb+s3://bucket/path --steps 40
    """
    from penstock.testing.simulation.engines import opened_simulation  # noqa: PLC0415
    from penstock.testing.simulation.report import simulate as run_seeds  # noqa: PLC0415

    began = time.perf_counter()
    with opened_simulation(engine, store) as simulation, meter("seeds", seeds) as bar:
        report = run_seeds(
            simulation,
            first_seed=first_seed,
            seeds=seeds,
            steps=steps,
            progress=lambda done: bar(completed=done),
        )
    seconds = time.perf_counter() - began
    command = f"penstock simulate --engine {engine}"
    if store is not None:
        command += f" --store {mask_password(store)}"
    repeats = [
        f"{command} --first-seed {failure.seed} --seeds 1 --steps {steps}"
        for failure in report.failures
    ]
    if choices().json:
        printing.document(_document(engine, report, repeats, seconds))
    else:
        _print_report(report, repeats, seconds)
    if report.failures:
        raise click.exceptions.Exit(Exit.VIOLATIONS)


def _document(
    engine: str, report: Report, repeats: Sequence[str], seconds: float
) -> dict[str, object]:
    return {
        "engine": engine,
        "seeds": report.seeds,
        "steps": report.steps,
        "turns": report.turns,
        "interleavings": report.interleavings,
        "verbs": dict(sorted(report.verbs.items())),
        "faults": dict(sorted(report.faults.items())),
        "seconds": round(seconds, 3),
        "failures": [
            {
                "seed": failure.seed,
                "violations": failure.violations,
                "shortest": str(failure.shortest),
                "shortest_violations": failure.shortest_violations,
                "repeat": repeat,
            }
            for failure, repeat in zip(report.failures, repeats, strict=True)
        ],
    }


def _print_report(report: Report, repeats: Sequence[str], seconds: float) -> None:
    for failure, repeat in zip(report.failures, repeats, strict=True):
        _print_violations(f"seed {failure.seed}", failure.violations)
        click.echo(f"repeat it: {repeat}\n")
        click.echo(f"the shortest part of it that was found to fail:\n{failure.shortest}")
        _print_violations("it breaks", failure.shortest_violations)
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(report.faults.items()))
    click.echo(
        f"{report.seeds} seeds, {report.steps} steps, {report.turns} turns, "
        f"{report.interleavings} interleavings in {seconds:.1f} s; "
        f"faults: {faults or 'none'}; {len(report.failures)} failing seeds"
    )


def _print_violations(title: str, violations: Sequence[str]) -> None:
    click.echo(click.style(f"{title}:", fg="red", bold=True))
    for violation in violations:
        click.echo(f"  {violation}")
