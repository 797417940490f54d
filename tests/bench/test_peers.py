"""Peers run: Redis on every workload, and ours and what else is installed on one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import bench.peers.penstock_http
import bench.peers.registry
from bench.peers.peer import MissingPeer, find_program
from bench.peers.registry import NAMES, find_peer
from bench.peers.results import Plan, Results
from bench.peers.rounds import run_rounds
from bench.peers.run import run
from bench.peers.workloads import WORKLOADS
from tests.bench.test_tables import results

__all__ = ["results"]

FLOORS = ("floor", "floor-uvloop")
PLAN = Plan(rounds=1, seconds=0.1, warm_up_s=0.05, waiting=1_000)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BENCH_DIR", str(tmp_path))


@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name != "W8"])
def test_workloads(workload: str) -> None:
    done = run(find_peer("redis"), workload, PLAN)
    if not done.messages:
        # On a busy machine nothing may end in the shortest time.
        done = run(find_peer("redis"), workload, replace(PLAN, seconds=10))
    assert not done.error
    assert done.messages > 0
    if done.verdict is not None:
        assert (done.verdict.lost, done.verdict.damaged) == (0, 0)


@pytest.mark.parametrize("name", FLOORS)
def test_floors(name: str) -> None:
    done = run(find_peer(name), "W1", PLAN)
    assert not done.error
    assert done.messages > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("redis", *FLOORS)])
def test_peers(name: str) -> None:
    """No message is lost on the way through any of them."""
    try:
        peer = find_peer(name)
        peer.versions()
    except MissingPeer as error:
        pytest.skip(str(error))
    done = run(peer, "W4", PLAN)
    assert not done.error
    assert done.verdict is not None
    assert done.verdict.confirmed > 0
    assert (done.verdict.lost, done.verdict.damaged) == (0, 0)


def test_a_killed_server_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = find_peer("penstock")
    monkeypatch.setattr(bench.peers.penstock_http, "LEASE_S", 1)
    monkeypatch.setattr(peer, "redelivery_s", 2.0)
    done = run(peer, "W8", PLAN)
    assert not done.error
    assert done.verdict is not None
    assert done.verdict.confirmed > 0
    assert (done.verdict.lost, done.settled_again) == (0, 0)


def test_a_server_that_does_not_start_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = find_peer("redis")
    monkeypatch.setattr(peer, "command", lambda _: ["sh", "-c", "echo no memory >&2; exit 1"])
    assert "no memory" in run(peer, "W1", PLAN).error


def test_a_missing_program_names_its_package() -> None:
    with pytest.raises(MissingPeer, match="apt-get install some-server"):
        find_program("surely-not-installed", "some-server")


def test_a_peer_that_is_missing_is_left_out_and_named(
    results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(bench.peers.registry._CLASSES, "rabbitmq", "surely_not_installed:Peer")
    run_rounds(results, PLAN, ["rabbitmq"], ["W1"])
    said = capsys.readouterr().err
    assert "rabbitmq is left out: surely_not_installed is not installed" in said
