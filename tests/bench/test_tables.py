"""Results, their tables and their targets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.machine import Machine
from bench.measuring import Figure
from bench.peers.cost import Cost
from bench.peers.probe import Verdict
from bench.peers.results import PeerInfo, Results, Run
from bench.peers.tables import comparison, figures_table, machine_line, peers_tables
from bench.peers.targets import target_figures


def one_run(rate: int, p50_ms: float = 1.0) -> Run:
    cost = Cost(
        seconds=2.0,
        server_cpu_s=0.5,
        client_cpu_s=0.25,
        foreign_share=0.0,
        flushes=rate,
        disk_bytes=0,
    )
    return Run(messages=2 * rate, cost=cost, p50_ms=p50_ms, p99_ms=2 * p50_ms)


def crash(lost: int, again: int) -> Run:
    verdict = Verdict(confirmed=10, received=10, settled=10, lost=lost, duplicates=0, damaged=0)
    return Run(verdict=verdict, settled_again=again)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(
        date="2026-01-02",
        commit="abc",
        machine=Machine.describe(tmp_path),
        peers={name: PeerInfo("fsync", "client", {name: "1"}) for name in ("penstock", "redis")},
        runs={
            # The median is neither the mean nor the last.
            "W1": {
                "penstock": [one_run(100), one_run(900), one_run(200)],
                "redis": [one_run(400), one_run(500), one_run(300)],
            },
            "W4": {"penstock": [Run(error="it ended")], "redis": [one_run(50)]},
            "W6": {"penstock": [one_run(500, 3.0)], "redis": [one_run(500, 1.5)]},
            "W8": {"penstock": [crash(0, 0)], "redis": [crash(1, 2)]},
        },
    )


def test_a_file_gives_back_what_was_saved(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.save(path)
    assert Results.load(path) == results


def test_a_later_run_keeps_what_it_does_not_measure(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.save(path)
    later = Results.open(path)
    assert later.runs == results.runs
    assert later.date != results.date


def test_medians_ratios_and_failures(results: Results) -> None:
    tables = peers_tables(results)
    assert "| penstock | 200 |" in tables
    assert "| redis | 400 (0.50) |" in tables
    assert "| failed |" in tables


def test_a_comparison_has_the_rows_that_are_lost_too(results: Results) -> None:
    rows = comparison(results, {"penstock": "Penstock"}, "redis", "Redis").splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| W1", "| W4", "| W6", "| W8"]
    first, failed, latency, killed = (row.strip("| ").split(" | ")[2:] for row in rows[2:])
    assert first == ["200/s", "0.50", "400/s"]
    assert failed[0] == "failed"
    assert latency == ["3.00 / 6.00 ms", "0.50", "1.50 / 3.00 ms"]
    assert killed[0] == "0 lost, 0 settled again"
    assert killed[-1] == "1 lost, 2 settled again"


def test_targets_of_what_was_measured(results: Results) -> None:
    figures = {figure.name: figure for figure in target_figures(results)}
    assert figures["W1: rate of penstock, of redis"].ratio == 0.5
    assert not figures["W1: rate of penstock, of redis"].holds
    assert figures["W6: median latency of penstock, of redis"].ratio == 2.0
    assert not any(name.startswith(("W2", "W4", "W7")) for name in figures)


def test_a_lost_message_misses_its_target(results: Results) -> None:
    (nothing,) = [one for one in target_figures(results) if "lost" in one.name]
    assert nothing.holds
    results.runs["W8"]["penstock"].append(crash(1, 0))
    (lost,) = [one for one in target_figures(results) if "lost" in one.name]
    assert not lost.holds


def test_a_busy_machine_is_named(results: Results) -> None:
    assert "busy" not in machine_line(results)
    done = results.runs["W1"]["redis"][0]
    assert done.cost is not None
    cost = msgspec.structs.replace(done.cost, foreign_share=0.5)
    results.runs["W1"]["redis"][0] = msgspec.structs.replace(done, cost=cost)
    assert "in 1 of 9 runs other programs used more than 8% of the processors, at most 50%" in (
        machine_line(results)
    )


def test_the_machine_and_other_figures(results: Results) -> None:
    assert "2026-01-02" in machine_line(results)
    missed = Figure("opening", 2.0, 1.0, "4 s", "2 s", at_most=True)
    assert "| opening | 2.00 | at most 1, missed | 4 s | 2 s |" in figures_table([missed])
