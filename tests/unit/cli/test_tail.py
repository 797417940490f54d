"""``penstock tail``: the end of the log, a place in it, and what comes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell


@pytest.fixture
def log(sh: Shell) -> Shell:
    """Thirty entries of two topics, published by three processes: offsets have gaps."""
    for topic in ("a", "b", "c"):
        sh.publish(*(f"{topic}{number}" for number in range(10)), topic=topic)
    return sh


def shown(sh: Shell, *args: str) -> list[str]:
    return [line.split()[-1] for line in sh("tail", "--payloads", *args).stdout.splitlines()]


def ids(entries: list[Any]) -> list[int]:
    return [entry["message"]["id"] for entry in entries]


def test_the_last_ten(log: Shell) -> None:
    assert shown(log) == [f"c{number}" for number in range(10)]


def test_more_than_the_last_stretch_holds(log: Shell) -> None:
    assert shown(log, "-n", "12") == ["b8", "b9", *(f"c{number}" for number in range(10))]
    assert len(shown(log, "-n", "100")) == 30
    assert shown(log, "-n", "0") == []


def test_the_last_ones_that_match(log: Shell) -> None:
    assert shown(log, "-n", "2", "--where", "topic = 'a'") == ["a8", "a9"]
    assert shown(log, "-n", "2", "--where", "topic = 'z'") == []


def test_from_a_place_on(log: Shell) -> None:
    everything = log.lines("tail", "--from", "earliest")
    assert len(everything) == 30
    tenth = ids(everything)[10]
    assert ids(log.lines("tail", "--from", str(tenth))) == ids(everything)[10:]
    assert log.lines("tail", "--from", "latest") == []
    assert ids(log.lines("tail", "--from", "earliest", "--limit", "3")) == [0, 1, 2]


def test_from_a_time_on(log: Shell) -> None:
    assert len(log.lines("tail", "--from", "1h")) == 30
    assert len(log.lines("tail", "--from", "2020-01-01T00:00Z")) == 30
    assert log.lines("tail", "--from", "2199-01-01") == []


@pytest.mark.parametrize("place", ["yesterday", "-5", "2020-99-99", "5"[:0]])
def test_a_place_that_is_none(log: Shell, place: str) -> None:
    log("tail", f"--from={place}", code=2)


@law("E1")
def test_a_bad_filter_points_at_its_place(log: Shell) -> None:
    assert "error: " in log("tail", "--where", "topic =", code=3).stderr


def test_payloads_only_where_they_are_asked_for(log: Shell) -> None:
    (bare,) = log.lines("tail", "-n", "1")
    (whole,) = log.lines("tail", "-n", "1", "--payloads")
    assert "payload_base64" not in bare
    assert whole["payload_base64"] == "Yzk="


def test_a_payload_cannot_move_the_cursor(sh: Shell) -> None:
    sh("publish", "orders", "\x1b[2Jgone\r\nforged", "-H", "note=\x1b]0;title\x07")
    (line,) = sh("tail", "--payloads").stdout.splitlines()
    assert "\\x1b[2Jgone\\r\\nforged" in line
    assert "\x1b" not in line
    assert "\x07" not in line


def test_following_prints_what_is_there_and_waits(log: Shell) -> None:
    command = [sys.executable, "-m", "penstock", "tail", "--follow", "--from", "earliest"]
    with subprocess.Popen(
        [*command, "--limit", "31", "--store", log.store], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert len([process.stdout.readline() for _ in range(30)]) == 30
        assert process.poll() is None
        process.terminate()
        assert process.wait(timeout=60) == 143
