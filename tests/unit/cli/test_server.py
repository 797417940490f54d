"""``penstock serve``, what it prints, and the commands against it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from penstock.cli.exits import Exit
from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell

PENSTOCK = [sys.executable, "-m", "penstock"]


@contextmanager
def serving(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server for as long as the block runs; it has to end well when it is told to."""
    process = subprocess.Popen(
        [*PENSTOCK, "serve", "--port", "0", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    finally:
        process.kill()
        process.communicate()


@contextmanager
def served(*args: str) -> Iterator[dict[str, Any]]:
    """What a server says of itself in JSON."""
    with serving("--json", *args) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


class Remote(Shell):
    """Commands on a server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, stdin: bytes | str | None = None, code: int = 0) -> Result:
        result = self.run(*args, "--url", self.url, stdin=stdin)
        assert result.exit_code == code, result.output
        return result


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    with served("--store", f"rocksdb://{tmp_path}/server") as told:
        assert told["auth"] is False
        yield Remote(told["url"])


def test_every_command_over_http(remote: Remote) -> None:
    """The same words and the same output as on a store."""
    binary = bytes(range(256))
    remote("publish", "blobs", "-", stdin=binary)
    assert remote("consume", "blobs", "--null").stdout_bytes == binary + b"\0"
    remote("queue", "create", "billing", "--filter", "amount >= 100", "--max-attempts", "1")
    remote.publish("one", "two", options=("-H", "amount=100"))
    assert remote.json("queue", "list")[0]["name"] == "billing"
    # It would be that of the credential all the same.
    remote("queue", "list", "--tenant", "other", code=3)
    assert len(remote.lines("peek", "billing", "--payloads")) == 2
    remote("consume", "billing", "--exec", "false")
    assert remote.json("replay", "billing", "--dry-run")["count"] == 2
    assert remote("replay", "billing").stdout == "2 deliveries replayed\n"
    assert remote("consume", "billing").stdout == "one\ntwo\n"
    assert len(remote.lines("tail", "--payloads")) == 3
    message = remote.lines("tail", "-n", "1")[0]["message"]["id"]
    assert remote.json("message", str(message))["message"]["topic"] == "orders"
    assert remote.json("history", str(message))[-1]["transition"] == "ack"
    assert remote.json("result", "billing", str(message))["message_id"] == message
    assert remote.json("queue", "explain", "billing", str(message))["state"] == "done"
    remote("topic", "put", "orders", "--default-ttl", "1d")
    assert remote.json("topic", "list")[0]["name"] == "orders"
    remote("topic", "show", "missing", code=4)
    remote("queue", "pause", "billing")
    remote("queue", "purge", "billing", "--state", "done", "--yes")
    remote("queue", "delete", "billing", "--yes")
    remote("queue", "show", "billing", code=4)
    report = remote.json("verify")
    assert [check["law"] for check in report["checks"] if check["violations"]] == []


def test_bench_on_a_server_removes_its_queue(remote: Remote) -> None:
    assert len(remote.json("bench", "--seconds", "0.01")) == 3
    assert remote.json("queue", "list") == []


def test_a_stream_and_history_over_http(remote: Remote) -> None:
    lines = [f"order {number}" for number in range(1_200)]
    done = remote.json("publish", "orders", "--lines", "--id", "s", stdin="\n".join(lines))
    assert (done["published"], done["durability"]) == (1_200, "fsync")
    remote("queue", "create", "copy", "--start", "earliest")
    assert remote.json("queue", "show", "copy")["stats"]["available"] == 1_200
    assert remote("consume", "copy").stdout.splitlines() == lines


def test_keys_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served("--store", f"rocksdb://{tmp_path}/server", "--auth") as told:
        remote = Remote(told["url"])
        remote("queue", "list", code=8)
        monkeypatch.setenv("PENSTOCK_CREDENTIAL", "psk_wrong")
        remote("queue", "list", code=8)
        monkeypatch.setenv("PENSTOCK_CREDENTIAL", told["key"])
        assert remote.json("queue", "list") == []
        shop = ("--grant", "publish:orders", "--name", "shop", "--requests-per-s", "1000")
        made = remote.json("key", "create", *shop)
        assert made["info"]["requests_per_s"] == 1000
        assert [info["name"] for info in remote.json("key", "list")] == ["first", "shop"]
        monkeypatch.setenv("PENSTOCK_CREDENTIAL", made["key"])
        remote("publish", "orders", "x")
        remote("publish", "invoices", "x", code=8)
        remote("key", "list", code=8)
        (tmp_path / "credential").write_text(told["key"] + "\n")
        monkeypatch.setenv("PENSTOCK_CREDENTIAL", f"file:{tmp_path}/credential")
        remote("key", "revoke", made["info"]["id"])
        remote("key", "revoke", made["info"]["id"], code=4)


def test_the_first_key_is_made_once(tmp_path: Path) -> None:
    store = f"rocksdb://{tmp_path}/server"
    with served("--store", store, "--auth") as told:
        assert told["key"].startswith("psk_")
    with served("--store", store, "--auth") as told:
        assert told["key"] is None


@law("E1")
@pytest.mark.parametrize(
    "flags, told",
    [
        (("--host", "0.0.0.0"), "--insecure"),
        (("--port", "99999"), "port"),
        (("--store", "nosuch:"), "scheme"),
        (("--jwt-secret", "x", "--jwt-secret-file", "y"), "exclude"),
    ],
)
def test_refused_before_anything_starts(
    sh: Shell, flags: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    port = () if "--port" in flags else ("--port", "0")
    result = sh.run("serve", *port, *flags)
    assert result.exit_code == 3, result.output
    assert told in result.stderr


def test_serving_a_store_that_is_in_use(tmp_path: Path) -> None:
    store = f"rocksdb://{tmp_path}/server"
    with served("--store", store):
        second = subprocess.run(
            [*PENSTOCK, "serve", "--port", "0", "--store", store],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert second.returncode == 7
    assert second.stderr.startswith("error: ")


def test_the_status_of_a_store_is_asked_of_its_servers() -> None:
    result = Shell("memory://").run("status", "--store", "memory://")
    assert result.exit_code == Exit.BAD_INPUT
    assert "give --url" in result.output
    assert "Use a URL such as" not in result.output  # Those are URLs of stores.
