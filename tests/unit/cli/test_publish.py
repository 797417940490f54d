"""``penstock publish``: bytes as they are, typed headers, streams in batches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell

#: Not UTF-8, with everything that a text layer would touch.
BINARY = bytes(range(256)) + b"\r\n\x00\xff\xfe\n\n"


def payload_of(sh: Shell, message_id: int) -> bytes:
    return sh("message", str(message_id), "--payload").stdout_bytes


def is_shortly_before(found_ms: int, expected_ms: int) -> bool:
    """The command adds a duration to its own clock, shortly before the store stamps the message."""
    return expected_ms - 60_000 < found_ms <= expected_ms


@law("P3")
def test_bytes_of_the_input_are_published_as_they_are(sh: Shell) -> None:
    sh("publish", "blobs", "-", stdin=BINARY)
    assert payload_of(sh, 0) == BINARY


@law("P3")
def test_bytes_of_a_file_are_published_as_they_are(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(BINARY)
    sh("publish", "blobs", "@blob", "--content-type", "image/png")
    assert payload_of(sh, 0) == BINARY
    assert sh.json("message", "0")["message"]["content_type"] == "image/png"


@law("P3")
def test_lines_lose_their_newline_and_nothing_else(sh: Shell) -> None:
    lines = [b"\xff\xfe", b"with\rreturn\r", b"", b"\x00", "grün".encode(), b"no newline"]
    sh("publish", "blobs", "--lines", stdin=b"\n".join(lines))
    assert [payload_of(sh, number) for number in range(len(lines))] == lines


@law("P3")
def test_a_pipe_and_a_word_that_is_not_utf8(sh: Shell) -> None:
    """Through a real process: its arguments and its input are bytes."""
    command = [sys.executable, "-m", "penstock", "publish", "blobs", "--store", sh.store]
    subprocess.run(command, input=BINARY, check=True, capture_output=True, timeout=60)
    subprocess.run([*command, b"\xff\xfe"], check=True, capture_output=True, timeout=60)
    assert sh("consume", "blobs", "--null").stdout_bytes == BINARY + b"\0\xff\xfe\0"


def test_text_says_that_it_is_text(sh: Shell) -> None:
    sh("publish", "orders", "grün")
    found = sh.json("message", "0")
    assert found["message"]["content_type"] == "text/plain; charset=utf-8"
    assert found["payload_text"] == "grün"


def test_options_become_metadata(sh: Shell) -> None:
    options = ("--id", "i", "--key", "k", "--partition-key", "p", "--priority", "9")
    times = ("--delay", "10m", "--ttl", "2h")
    headers = ("-H", "amount=250", "-H", "country=DE", "-H", "express=true")
    sh("publish", "orders", "x", *options, *times, *headers)
    found = sh.json("message", "0")["message"]
    assert found["headers"] == {"amount": 250, "country": "DE", "express": True}
    assert (found["key"], found["partition_key"], found["priority"]) == ("k", "p", 9)
    assert is_shortly_before(found["deliver_at"] - found["published_at"], 600_000)
    assert is_shortly_before(found["expires_at"] - found["published_at"], 7_200_000)


def test_json_says_what_became_of_it(sh: Shell) -> None:
    assert sh.json("publish", "orders", "x", "--id", "one") == {
        "id": 0,
        "offset": 0,
        "duplicate": False,
        "replaced": False,
        "queues": 1,
        "durability": "fsync",
    }


def test_a_message_need_not_create_a_queue(sh: Shell) -> None:
    done = sh("publish", "orders", "x", "--no-auto-create").stdout
    assert done == "published message 0, which no queue takes\n"
    sh("publish", "orders", "--lines", "--no-auto-create", stdin="a\nb\n")
    assert sh.json("queue", "list") == []
    done = sh("publish", "orders", "x").stdout
    assert re.fullmatch(r"published message \d+ to 1 queue\n", done)


@law("P4")
def test_the_same_id_again_is_a_duplicate(sh: Shell) -> None:
    sh("publish", "orders", "x", "--id", "one")
    assert sh("publish", "orders", "x", "--id", "one").stdout == "duplicate of message 0\n"


@law("P4")
def test_a_stream_can_be_repeated(sh: Shell) -> None:
    sh("publish", "orders", "--lines", "--id", "import", stdin="a\nb\n")
    again = sh.json("publish", "orders", "--lines", "--id", "import", stdin="a\nb\nc\n")
    assert (again["published"], again["duplicates"]) == (3, 2)
    assert sh.json("queue", "show", "orders")["stats"]["available"] == 3


def test_a_stream_is_stored_in_batches_and_in_order(sh: Shell) -> None:
    lines = [f"order {number}" for number in range(1_234)]
    done = sh.json("publish", "orders", "--lines", "--batch", "100", stdin="\n".join(lines))
    assert (done["published"], done["first_id"], done["last_id"]) == (1_234, 0, 1_233)
    assert sh("consume", "orders").stdout.splitlines() == lines


def test_ndjson_lines_have_options_of_their_own(sh: Shell) -> None:
    lines = [
        {"payload": {"order": 7}, "headers": {"amount": 1}, "priority": 8, "id": "mine"},
        {"payload_text": "grün", "key": "k"},
        {"payload_base64": "/w=="},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    sh("publish", "orders", "--ndjson", "-H", "amount=5", "-H", "shop=a", "--ttl", "1h", stdin=text)
    found = [sh.json("message", str(number))["message"] for number in range(3)]
    assert [item["headers"] for item in found] == [
        {"amount": 1, "shop": "a"},
        {"amount": 5, "shop": "a"},
        {"amount": 5, "shop": "a"},
    ]
    assert [item["priority"] for item in found] == [8, 4, 4]
    lifetimes = [item["expires_at"] - item["published_at"] for item in found]
    assert all(is_shortly_before(lifetime_ms, 3_600_000) for lifetime_ms in lifetimes)
    assert payload_of(sh, 0) == b'{"order": 7}'
    assert payload_of(sh, 2) == b"\xff"
    assert sh("publish", "orders", "x", "--id", "mine").stdout == "duplicate of message 0\n"


@law("E1")
@pytest.mark.parametrize(
    "line", ["{", '{"payload": 1, "payload_text": "x"}', '{"payload": 1, "prio": 5}', "[]"]
)
def test_a_bad_line_says_its_number_and_what_was_stored(sh: Shell, line: str) -> None:
    stdin = '{"payload": 1}\n{"payload": 2}\n' + line
    result = sh("publish", "orders", "--ndjson", "--batch", "1", stdin=stdin, code=3)
    assert "Line 3" in result.stderr
    assert "2 messages were published before" in result.stderr
    assert sh.json("queue", "show", "orders")["stats"]["available"] == 2


@law("E1")
@pytest.mark.parametrize(
    "args",
    [
        ("publish", "bad name", "x"),
        ("publish", "orders.dlq", "x"),
        ("publish", "orders", "@missing"),
        ("publish", "orders", "@."),
        ("publish", "orders", "x", "-H", f"{'n' * 300}=1"),
    ],
)
def test_bad_input(sh: Shell, args: tuple[str, ...]) -> None:
    result = sh(*args, code=3)
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


@law("E1")
def test_a_missing_file_leaves_no_store_behind(sh: Shell, tmp_path: Path) -> None:
    sh("publish", "orders", "@missing", code=3)
    assert list(tmp_path.iterdir()) == []


def test_a_full_queue_can_be_retried_later(sh: Shell) -> None:
    sh("queue", "create", "orders", "--filter", "topic = 'orders'", "--max-depth", "1")
    sh("publish", "orders", "x")
    assert "Retry later" in sh("publish", "orders", "y", code=6).stderr
    assert sh.json("queue", "show", "orders")["stats"]["available"] == 1


def test_a_slow_producers_line_is_published_at_once(sh: Shell) -> None:
    """The stream is still open when its first line can be consumed."""
    server = [sys.executable, "-c", FOLLOWER, sh.store]
    reading, writing = os.pipe()
    with subprocess.Popen(server, stdin=reading, stdout=subprocess.PIPE) as process:
        os.close(reading)
        try:
            os.write(writing, b"first\n")
            assert process.stdout is not None
            assert process.stdout.readline() == b"first\n"
        finally:
            os.close(writing)
        assert process.wait(timeout=60) == 0


#: Reads its input as ``publish --lines`` does, and prints each line when it has it.
FOLLOWER = """
import asyncio, sys
from penstock.cli.inputs import Source
async def main():
    async for lines in Source(sys.stdin.buffer).lines():
        for line in lines:
            print(line.decode(), flush=True)
asyncio.run(main())
"""
