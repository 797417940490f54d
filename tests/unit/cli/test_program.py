"""How the program ends: exit codes, messages, tracebacks only on request."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock import errors
from penstock.cli.exits import Exit, exit_of
from penstock.cli.queue import commands
from penstock.errors import PenstockError
from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell

#: Written out: scripts depend on the numbers.
CODES = {
    errors.BadInput: 3,
    errors.BadFilter: 3,
    errors.BadName: 3,
    errors.BadPolicy: 3,
    errors.BadSetting: 3,
    errors.BadUrl: 3,
    errors.TooLarge: 3,
    errors.NotFound: 4,
    errors.UnknownMessage: 4,
    errors.UnknownQueue: 4,
    errors.UnknownTopic: 4,
    errors.Conflict: 5,
    errors.QueueNotEmpty: 5,
    errors.StaleReceipt: 5,
    errors.QueueFull: 6,
    errors.Busy: 6,
    errors.MissingExtra: 7,
    errors.Unreachable: 7,
    errors.BadReply: 7,
    errors.CommitFailed: 7,
    errors.StoreBusy: 7,
    errors.StoreClosed: 7,
    errors.StoreCorrupt: 7,
    errors.StoreLocked: 7,
    errors.StoreReadOnly: 7,
    errors.StoreTooNew: 7,
    errors.StoreTooOld: 7,
    errors.StoreUnavailable: 7,
    errors.Forbidden: 8,
    errors.Unauthenticated: 8,
}


def make(kind: type[PenstockError]) -> PenstockError:
    if kind is errors.QueueFull:
        return errors.QueueFull("What is wrong.", queue="q", limit=1, retry_after_ms=1)
    return kind("What is wrong.")


@law("E1")
@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_every_family_of_errors_has_a_code(
    orders: Shell, kind: type[PenstockError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: one line with what is wrong, one with what to do, and a code."""

    def refuse(*_: object) -> None:
        raise make(kind)

    monkeypatch.setattr(commands, "called", refuse)
    result = orders("queue", "list", code=CODES[kind])
    first, second = result.stderr.splitlines()
    assert first == "error: What is wrong."
    assert kind.advice in second
    assert result.stdout == ""


def test_no_error_is_without_a_code() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind is not PenstockError:
            assert exit_of(make(kind)) is not Exit.UNEXPECTED, name


def test_the_codes_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
    for code in Exit:
        assert f"| {code.value} |" in page, code


def test_something_unexpected_is_one_line_and_a_traceback_on_request(
    orders: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        raise RuntimeError("out of cheese")

    monkeypatch.setattr(commands, "called", stumble)
    result = orders("queue", "list", code=1)
    assert result.stderr.splitlines()[0] == "error: RuntimeError: out of cheese"
    assert "Traceback" not in result.stderr
    assert "Traceback" in orders("queue", "list", "--debug", code=1).stderr


def test_debug_shows_where_an_error_of_ours_came_from(orders: Shell) -> None:
    assert "Traceback" in orders("queue", "show", "missing", "--debug", code=4).stderr


def test_text_of_others_cannot_forge_a_line(sh: Shell) -> None:
    sh("topic", "put", "x")
    result = sh("queue", "show", "a\n\x1b[31merror: forged", code=3)
    assert len(result.stderr.splitlines()) == 2
    assert "\x1b" not in result.stderr


# -- which server, which store -----------------------------------------------------------


def test_url_and_store_exclude_each_other(sh: Shell) -> None:
    assert "exclude each other" in sh("queue", "list", "--url", "http://localhost", code=2).stderr


def test_the_one_that_stands_last_counts(orders: Shell) -> None:
    result = orders.run("--url", "http://127.0.0.1:1", "queue", "list", "--store", orders.store)
    assert result.exit_code == 0
    result = orders.run("--store", "rocksdb:elsewhere", "queue", "list", "--store", orders.store)
    assert "orders" in result.stdout


def test_shared_options_may_stand_first(orders: Shell) -> None:
    result = orders.run("--store", orders.store, "--json", "queue", "list")
    assert result.stdout.startswith("[{")


def test_a_store_that_is_not_there_is_not_made_by_looking(sh: Shell, tmp_path: Path) -> None:
    for command in (("queue", "list"), ("consume", "q"), ("verify",), ("tail",), ("key", "list")):
        assert "There is no store at" in sh(*command, code=7).stderr
    assert list(tmp_path.iterdir()) == []
    for path in (tmp_path, tmp_path / "missing"):
        store = f"slatedb+file://{path}"
        result = sh.run("--store", store, "verify")
        assert "There is no store at" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_another_process_has_suggests_its_server(orders: Shell) -> None:
    holder = (
        "import asyncio, sys, penstock\n"
        "async def main():\n"
        "    async with penstock.open(sys.argv[1]):\n"
        "        print('open', flush=True)\n"
        "        await asyncio.to_thread(sys.stdin.read)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", holder, orders.store]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        try:
            assert "--url http://127.0.0.1:8080" in orders("queue", "list", code=7).stderr
        finally:
            process.communicate()


@law("E1")
@pytest.mark.parametrize("url", ["rocksdb:", "nosuch://x", "rocksdb://host/path"])
def test_a_store_url_that_is_none(sh: Shell, url: str) -> None:
    assert sh.run("queue", "list", "--store", url).exit_code in (3, 7)
    assert sh.run("publish", "t", "x", "--store", url).exit_code == 3


def test_a_server_that_is_not_there(sh: Shell) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        result = sh.run("queue", "list", "--url", f"http://127.0.0.1:{port}")
    assert result.exit_code == 7
    assert "penstock serve" in result.stderr


@law("T1")
def test_tenants_do_not_see_each_other(orders: Shell) -> None:
    """T1."""
    assert orders.json("queue", "list", "--tenant", "other") == []
    orders("queue", "list", "--tenant", "not a name", code=3)


def test_interrupting_the_program(orders: Shell) -> None:
    """Ctrl-C during start-up or work: 130, one word, no traceback."""
    command = [sys.executable, "-m", "penstock", "tail", "--follow", "--store", orders.store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.strip() == b"interrupted"


def test_python_m_penstock_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, timeout=60, check=True
    )
    assert done.stdout.startswith(b"penstock ")


# -- questions ---------------------------------------------------------------------------


@contextmanager
def asked(sh: Shell) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command that waits at a terminal for its answer, and the other end of the terminal."""
    person, terminal = pty.openpty()
    command = [sys.executable, "-m", "penstock", "queue", "delete", "orders", "--store", sh.store]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        try:
            seen = b""
            while not seen.endswith(b"[y/N]: "):
                seen += os.read(person, 1024)
            assert b"Delete orders with 3 live and 0 failed deliveries?" in seen
            yield process, person
        finally:
            process.kill()
            process.wait()
            os.close(person)


@pytest.mark.parametrize("answer, code", [(b"y\n", 0), (b"n\n", 130)])
def test_a_person_is_asked_before_a_queue_is_deleted(
    orders: Shell, answer: bytes, code: int
) -> None:
    with asked(orders) as (process, person):
        os.write(person, answer)
        assert process.wait(timeout=60) == code
    assert (orders.json("queue", "list") == []) is (code == 0)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_a_question_can_be_left_by_a_signal(
    orders: Shell, number: signal.Signals, code: int
) -> None:
    with asked(orders) as (process, _):
        for _ in range(12):
            # Again: one that comes just before readline begins to wait is noticed only after it.
            # Not soon: while Python ends, a second one would kill the process.
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
                break
        assert process.returncode == code
    assert orders.json("queue", "list")
