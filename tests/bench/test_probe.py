"""The probe notices lost, doubled and damaged messages, across processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.messages import body
from bench.peers.probe import CAPACITY, Phase, Probe, Verdict, percentile

ROOT = Path(__file__).parents[2]


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return Probe.create(tmp_path / "probe")


def publish(probe: Probe, count: int) -> list[bytes]:
    numbers = probe.take(count)
    bodies = [body(number) for number in numbers]
    probe.confirm(numbers, 0.001)
    return bodies


def test_all_is_well(probe: Probe) -> None:
    for message in publish(probe, 3):
        probe.settle([probe.receive(message)])
    assert probe.verdict() == Verdict(
        confirmed=3, received=3, settled=3, lost=0, duplicates=0, damaged=0
    )
    assert probe.published_count() == probe.settled_count() == 3


def test_a_confirmed_message_that_never_comes_is_lost(probe: Probe) -> None:
    bodies = publish(probe, 3)
    probe.receive(bodies[1])
    verdict = probe.verdict()
    assert (verdict.lost, verdict.received) == (2, 1)


def test_an_unconfirmed_message_may_be_lost(probe: Probe) -> None:
    probe.take(3)
    assert probe.verdict().lost == 0


def test_each_further_receipt_is_a_duplicate(probe: Probe) -> None:
    first, second = publish(probe, 2)
    for message in (first, first, first, second):
        probe.receive(message)
    verdict = probe.verdict()
    assert (verdict.duplicates, verdict.received, verdict.lost) == (2, 2, 0)


def test_a_damaged_message_is_counted_and_raises(probe: Probe) -> None:
    (message,) = publish(probe, 1)
    with pytest.raises(ValueError, match="damaged"):
        probe.receive(message[:-1] + b"?")
    verdict = probe.verdict()
    assert (verdict.damaged, verdict.lost) == (1, 1)


def test_settled_messages_that_come_again(probe: Probe) -> None:
    first, second, third = publish(probe, 3)
    probe.settle([probe.receive(first), probe.receive(second)])
    probe.receive(third)
    settled, received = bytes(probe.settled), bytes(probe.received)
    probe.receive(second)
    # It was not settled before.
    probe.receive(third)
    assert probe.received_since(settled, received) == 1


def test_times_count_only_while_measuring(probe: Probe) -> None:
    probe.phase = Phase.WARM_UP
    for message in publish(probe, 1):
        probe.receive(message)
    assert percentile(probe.call_us, 0.5) is None
    probe.phase = Phase.MEASURE
    for message in publish(probe, 1):
        probe.receive(message)
    assert percentile(probe.call_us, 0.5) == 1.0
    assert percentile(probe.latency_us, 0.99) is not None


def test_percentiles() -> None:
    values = [0, *range(1000, 101_000, 1000)]
    assert percentile(values, 0.5) == 51.0
    assert percentile(values, 0.99) == 100.0


def test_a_run_that_is_too_long_says_so(probe: Probe) -> None:
    with pytest.raises(OverflowError, match="fewer seconds"):
        probe.take(CAPACITY + 1)


_OTHER = """
import sys
from pathlib import Path
from bench.messages import body
from bench.peers.probe import Probe
probe = Probe(Path(sys.argv[1]))
probe.add_ready()
for number in range(1000):
    probe.settle([probe.receive(body(number))])
"""


def test_processes_count_together(probe: Probe) -> None:
    """No increment is lost, although all of them write at the same time."""
    command = [sys.executable, "-c", _OTHER, str(probe.path)]
    others = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [other.wait(60) for other in others] == [0, 0, 0]
    assert probe.ready_clients() == 3
    assert probe.settled_count() == 3_000
    assert probe.verdict().received == 1_000
