"""``penstock consume``: printed first, acked after, whatever happens to the pipe."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from typing_extensions import Buffer

import penstock
from penstock.broker import Broker
from penstock.cli import consume, printing
from penstock.errors import PenstockError, StoreBusy, Unreachable
from penstock.model.delivery import Delivery, SettleReply
from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell


def states(sh: Shell, queue: str = "orders") -> dict[str, int]:
    """The counts that are not zero."""
    stats = sh.json("queue", "show", queue)["stats"]
    names = ("available", "in_flight", "delayed", "done", "failed", "expired")
    return {name: stats[name] for name in names if stats[name]}


def process(sh: Shell, *args: str, stdout: int | IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *args, "--store", sh.store],
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def test_it_prints_and_acks_until_the_queue_is_empty(orders: Shell) -> None:
    assert orders("consume", "orders").stdout == "one\ntwo\nthree\n"
    assert states(orders) == {"done": 3}
    assert orders("consume", "orders").stdout == ""


def test_limit(orders: Shell) -> None:
    assert orders("consume", "orders", "--limit", "2").stdout == "one\ntwo\n"
    assert states(orders) == {"done": 2, "available": 1}


def test_several_queues_in_the_given_order(sh: Shell) -> None:
    for queue in ("later", "urgent"):
        for number in range(2):
            sh("publish", queue, f"{queue} {number}")
    said = sh("consume", "urgent", "later", "--limit", "3").stdout
    assert said == "urgent 0\nurgent 1\nlater 0\n"
    assert (states(sh, "urgent"), states(sh, "later")) == ({"done": 2}, {"done": 1, "available": 1})
    sh("publish", "urgent", "urgent 2")
    said = sh("consume", "urgent", "later", "--order", "fair", "--no-ack").stdout
    assert sorted(said.splitlines()) == ["later 1", "urgent 2"]
    assert states(sh, "later") == {"done": 1, "available": 1}


def test_a_selector_leaves_the_others(orders: Shell) -> None:
    orders("publish", "orders", "four", "-H", "amount=7")
    assert orders("consume", "orders", "--where", "amount = 7").stdout == "four\n"
    assert states(orders) == {"done": 1, "available": 3}
    assert "ends after '='" in orders("consume", "orders", "--where", "amount = ", code=3).stderr
    assert states(orders) == {"done": 1, "available": 3}


def test_json_lines_hold_the_whole_delivery(orders: Shell) -> None:
    found = orders.lines("consume", "orders")
    assert [item["message"]["id"] for item in found] == [0, 1, 2]
    assert {item["attempts"] for item in found} == {1}
    assert found[0]["message"]["headers"] == {"amount": 100}
    assert found[0]["payload_base64"] == "b25l"


def test_a_json_payload_with_newlines_is_still_one_line(sh: Shell) -> None:
    sh("publish", "orders", '{\n  "order": 7\n}', "--content-type", "application/json")
    (found,) = sh.lines("consume", "orders")
    assert found["payload"] == {"order": 7}


@law("P3")
def test_payloads_are_printed_byte_for_byte(sh: Shell) -> None:
    raw = bytes(range(256))
    sh("publish", "blobs", "-", stdin=raw)
    assert sh("consume", "blobs", "--null").stdout_bytes == raw + b"\0"


def test_no_ack_hands_everything_back_untouched(orders: Shell) -> None:
    assert orders("consume", "orders", "--no-ack").stdout == "one\ntwo\nthree\n"
    assert states(orders) == {"available": 3}
    # C2: a grant that was released does not count.
    assert orders.lines("consume", "orders")[0]["attempts"] >= 1


@pytest.mark.parametrize("option", [("--follow",), ("--exec", "true")])
def test_no_ack_has_no_follow_and_no_exec(orders: Shell, option: tuple[str, ...]) -> None:
    orders("consume", "orders", "--no-ack", *option, code=2)


def test_an_unknown_queue(sh: Shell) -> None:
    sh("publish", "orders", "x")
    assert "nothing" in sh("consume", "nothing", code=4).stderr


def test_a_consumer_of_an_ordered_queue_leaves_at_its_end(sh: Shell) -> None:
    sh("queue", "create", "orders", "--ordering", "partition")
    for partition in ("a", "b"):
        sh("publish", "orders", partition, "--partition-key", partition)
    assert sorted(sh("consume", "orders").stdout.split()) == ["a", "b"]
    # The second consumer would wait 30 s for the partitions of the first.
    sh("publish", "orders", "again", "--partition-key", "a")
    assert sh("consume", "orders").stdout == "again\n"


# -- acked only after it was written -----------------------------------------------------


@law("S3")
def test_nothing_is_acked_that_could_not_be_written(orders: Shell) -> None:
    """S3: a full disk under stdout gives everything back, and is said."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("wb") as stdout, process(orders, "consume", "orders", stdout=stdout) as done:
        _, errors = done.communicate(timeout=60)
    assert done.returncode == 1
    assert b"No space left" in errors
    assert b"Traceback" not in errors
    assert states(orders) == {"available": 3}


def test_a_reader_that_left_is_a_quiet_end(orders: Shell) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with process(orders, "consume", "orders", stdout=writing) as done:
        os.close(writing)
        _, errors = done.communicate(timeout=60)
    assert (done.returncode, errors) == (141, b"")
    assert states(orders) == {"available": 3}


@pytest.mark.parametrize("command", [("tail", "--from", "earliest"), ("peek", "orders")])
def test_a_broken_pipe_is_quiet_for_readers_too(orders: Shell, command: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with process(orders, *command, stdout=writing) as done:
        os.close(writing)
        _, errors = done.communicate(timeout=60)
    assert (done.returncode, errors) == (141, b"")


def test_the_line_is_out_before_the_ack(orders: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from the settle: everything it acks was written before."""
    written: list[bytes] = []
    seen: list[list[bytes]] = []
    settle = Broker.settle

    class Output(io.BytesIO):
        def write(self, data: Buffer) -> int:
            written.append(bytes(data))
            return len(written[-1])

        def flush(self) -> None:
            written.append(b"flushed")

    async def spy(self: Broker, *args: Any, **options: Any) -> SettleReply:
        seen.append(written.copy())
        return await settle(self, *args, **options)

    monkeypatch.setattr(Broker, "settle", spy)
    monkeypatch.setattr(printing, "raw_output", Output)
    orders("consume", "orders", "--batch", "2")
    first = [b"one\n", b"two\n", b"flushed"]
    assert seen == [first, [*first, b"three\n", b"flushed"]]


# -- following ---------------------------------------------------------------------------


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_following_ends_with_a_signal(orders: Shell, number: signal.Signals, code: int) -> None:
    with process(orders, "consume", "orders", "--follow", stdout=subprocess.PIPE) as done:
        assert done.stdout is not None
        assert [done.stdout.readline() for _ in range(3)] == [b"one\n", b"two\n", b"three\n"]
        done.send_signal(number)
        _, errors = done.communicate(timeout=60)
    assert done.returncode == code
    assert b"Traceback" not in errors
    assert states(orders) == {"done": 3}


def test_waiting_ends_when_none_came_for_so_long(orders: Shell) -> None:
    assert orders("consume", "orders", "--wait", "1ms").stdout == "one\ntwo\nthree\n"


# -- a command for each ------------------------------------------------------------------


def test_exec_acks_what_succeeds(orders: Shell, tmp_path: Path) -> None:
    script = tmp_path / "worker"
    script.write_text(
        '#!/bin/sh\n{ printf "%s %s " "$DELIVERY_MESSAGE_ID" "$DELIVERY_TOPIC"; cat; echo; }'
        f" >> {tmp_path}/seen\n"
    )
    script.chmod(0o700)
    orders("consume", "orders", "--exec", str(script))
    assert (tmp_path / "seen").read_text() == "0 orders one\n1 orders two\n2 orders three\n"
    assert states(orders) == {"done": 3}


def test_exec_knows_how_a_dead_letter_failed(orders: Shell, tmp_path: Path) -> None:
    orders("queue", "update", "orders", "--max-attempts", "1")
    orders("consume", "orders", "--limit", "1", "--exec", "false")
    shown = orders.json("consume", "orders.dlq", "--limit", "1", "--no-ack")
    assert (shown["error"], shown["original_queue"]) == ("false ended with 1", "orders")
    script = tmp_path / "worker"
    script.write_text(
        '#!/bin/sh\necho "$DELIVERY_ERROR|$DELIVERY_FAILED_AT|$DELIVERY_ORIGINAL_QUEUE"'
        f" >> {tmp_path}/seen\n"
    )
    script.chmod(0o700)
    orders("consume", "orders.dlq", "--exec", str(script))
    assert (tmp_path / "seen").read_text() == f"false ended with 1|{shown['failed_at']}|orders\n"


def test_exec_nacks_what_fails(orders: Shell) -> None:
    orders("queue", "update", "orders", "--backoff-base", "1h", "--backoff-max", "1h")
    orders("consume", "orders", "--exec", "sh -c 'exit 7'")
    assert states(orders)["delayed"] == 3
    (event,) = [e for e in orders.json("history", "0") if e["transition"] == "nack"]
    assert event["error"] == "sh ended with 7"


def test_exec_may_run_penstock_itself(orders: Shell) -> None:
    """What it finds in its environment is no setting."""
    orders("consume", "orders", "--exec", f"{sys.executable} -m penstock config --json")
    assert states(orders) == {"done": 3}


def test_exec_that_does_not_read_its_input(sh: Shell) -> None:
    sh("publish", "blobs", "-", stdin=b"x" * 1_000_000)
    sh("consume", "blobs", "--exec", "true")
    assert states(sh, "blobs") == {"done": 1}


def test_exec_survives_every_content_type(sh: Shell, tmp_path: Path) -> None:
    with penstock.sync.open(sh.store) as q:
        q.publish("odd", b"", content_type="a\0b")
    sh(
        "consume",
        "odd",
        "--exec",
        f"sh -c 'printf %s \"$DELIVERY_CONTENT_TYPE\" > {tmp_path}/seen'",
    )
    assert (tmp_path / "seen").read_text() == "a\ufffdb"
    assert states(sh, "odd") == {"done": 1}


async def test_exec_goes_on_extending_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that lapses while the command runs means that another consumer runs it too."""
    async with penstock.open("memory://") as q:
        await q.create_queue("q", "TRUE", min_lease_ms=100)
        await q.publish("t", b"")
        (delivery,) = await q.claim("q", lease_ms=300)
        extend, extended = q.extend, asyncio.Event()
        errors: list[PenstockError] = [Unreachable("No answer."), StoreBusy("Busy.")]

        async def flaky(delivery: Delivery, lease_ms: int) -> None:
            if errors:
                raise errors.pop()
            await extend(delivery, lease_ms)
            extended.set()

        monkeypatch.setattr(q, "extend", flaky)
        holding = asyncio.create_task(consume._hold(q, delivery))
        async with asyncio.timeout(60):
            await extended.wait()
        holding.cancel()


@law("E1")
@pytest.mark.parametrize("command", ["", "no-such-command-here", "'unbalanced"])
def test_a_command_that_is_none_claims_nothing(orders: Shell, command: str) -> None:
    orders("consume", "orders", "--exec", command, code=2)
    assert states(orders) == {"available": 3}
