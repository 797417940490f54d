"""``penstock apply`` and ``penstock export``: queues and topics as a file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.errors import TooManyQueues
from penstock.model.queue import QueueInfo, QueuePolicy, TopicPolicy
from tests.unit.cli.conftest import Shell
from tests.unit.cli.test_server import remote  # noqa: F401

FILE = """
[topics.orders]
default_ttl_ms = 60000
schema_type = "json-schema"
schema = '{"type": "object"}'
queue_defaults = { max_attempts = 3 }

[queues.billing]
filter = "topic = 'orders' AND amount >= 100"
max_attempts = 7
backoff = { base_ms = 10, max_ms = 20 }
labels = { team = "money", "a/b" = "x" }

[queues."esc.a"]
description = 'a "quoted" line\\'
max_depth = 0
"""
#: Fields with values that are not their defaults.
QUEUE_OPTIONS = (
    *("--filter", "amount > 1 AND topic = 'it''s'", "--max-attempts", "9", "--lease", "2m"),
    *("--min-lease", "2s", "--max-lease", "1h", "--backoff-base", "7ms", "--backoff-max", "9ms"),
    *("--done-retention", "1s", "--failed-retention", "2s", "--max-depth", "10"),
    *("--message-ttl", "3s", "--throughput-limit", "11", "--ordering", "partition"),
    *("--bucket-size", "1", "--no-dead-letters", "--paused"),
    *("--partition-batch", "2", "--dead-letter-topic", "dead", "--dead-letter-expired"),
    *("--description", 'a\n"b" \\ é \x7f', "--label", "team=money", "--label", "a/b=c d"),
)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "queues.toml", FILE)


def state(sh: Shell) -> tuple[object, object]:
    queues = {item["name"]: item["policy"] for item in sh.json("queue", "list")}
    return queues, sh.json("topic", "list")


def test_a_file_is_applied_and_then_there_is_nothing_to_change(sh: Shell, file: str) -> None:
    done = sh("apply", "-f", file)
    assert "+ topic orders\n" in done.stdout
    assert "+ queue billing\n" in done.stdout
    assert "    max_attempts = 7\n" in done.stdout
    assert "3 changes made" in done.stderr
    policy = sh.json("queue", "show", "billing")["policy"]
    assert policy["filter"] == "topic = 'orders' AND amount >= 100"
    assert policy["max_attempts"] == 7
    assert policy["backoff"] == {"base_ms": 10, "max_ms": 20}
    assert policy["labels"] == {"team": "money", "a/b": "x"}
    assert sh.json("queue", "show", "esc.a")["policy"]["description"] == 'a "quoted" line\\'
    assert sh.json("topic", "show", "orders")["policy"]["queue_defaults"] == {"max_attempts": 3}
    assert sh.json("apply", "-f", file) == {"changes": [], "applied": True}
    assert "nothing to change" in sh("apply", "-f", file).stderr


def test_only_the_fields_of_the_file_change(sh: Shell, file: str, tmp_path: Path) -> None:
    sh("apply", "-f", file)
    sh("queue", "update", "billing", "--lease", "90s")
    sh("queue", "pause", "billing")
    changed = write(tmp_path / "changed.toml", FILE.replace("max_attempts = 7", "max_attempts = 8"))
    done = sh("apply", "-f", changed)
    assert done.stdout == "~ queue billing\n    max_attempts: 7 -> 8\n"
    policy = sh.json("queue", "show", "billing")["policy"]
    assert (policy["max_attempts"], policy["lease_ms"], policy["paused"]) == (8, 90_000, True)
    none = '[topics.orders]\nschema = ""\nschema_type = ""\ndefault_ttl_ms = 0\n'
    sh("apply", "-f", "-", stdin=none)
    topic = sh.json("topic", "show", "orders")["policy"]
    assert (topic["schema"], topic["schema_type"], topic["default_ttl_ms"]) == (None, None, None)
    assert topic["queue_defaults"] == {"max_attempts": 3}


def test_a_dry_run_changes_nothing(sh: Shell, file: str) -> None:
    sh("queue", "create", "old")
    before = state(sh)
    done = sh("apply", "-f", file, "--dry-run", "--prune")
    assert "+ queue billing" in done.stdout
    assert "- queue old" in done.stdout
    assert "4 changes, not made" in done.stderr
    found = sh.json("apply", "-f", file, "--dry-run")
    assert found["applied"] is False
    [billing] = [change for change in found["changes"] if change["name"] == "billing"]
    assert billing["fields"]["max_attempts"] == [None, 7]
    assert state(sh) == before


def test_only_prune_deletes(sh: Shell, file: str) -> None:
    sh("queue", "create", "old")
    sh("topic", "put", "old")
    sh("apply", "-f", file)
    sh("queue", "show", "old")
    # The input is no terminal, so that nobody can be asked.
    refused = sh("apply", "-f", file, "--prune", code=2)
    assert "topic old, queue old" in refused.stderr
    sh("queue", "show", "old")
    sh("apply", "-f", file, "--prune", "--yes")
    sh("queue", "show", "old", code=4)
    sh("topic", "show", "old", code=4)
    sh("queue", "show", "billing")


def test_an_export_applies_to_its_own_store_without_changes(sh: Shell, tmp_path: Path) -> None:
    sh("queue", "create", "plain")
    sh("queue", "create", "all", *QUEUE_OPTIONS)
    schema = '{"type": "string",\n "pattern": "^\\\\d\\"\'$"}'
    defaults = '{"backoff": {"base_ms": 1, "max_ms": 2}, "labels": {"a": "b"}, "paused": true, '
    defaults += '"max_depth": null}'
    sh(
        *("topic", "put", "orders", "--default-ttl", "5s", "--dedup-window", "6s"),
        *("--dedup-scope", "partition_key", "--schema-type", "json-schema", "--schema", schema),
        *("--queue-defaults", defaults),
    )
    sh("topic", "put", "plain")
    exported = sh("export").stdout
    copy = write(tmp_path / "export.toml", exported)
    assert sh.json("apply", "-f", copy, "--prune") == {"changes": [], "applied": True}
    other = Shell(f"rocksdb://{tmp_path}/other")
    other("apply", "-f", copy)
    assert other("export").stdout == exported
    sh("queue", "resume", "all")
    assert state(other) == state(sh)
    tables = tomllib.loads(exported)
    assert set(tables["topics"]["orders"]) == set(TopicPolicy.__struct_fields__)
    assert set(tables["queues"]["all"]) == set(QueuePolicy.__struct_fields__) - {"paused"}


@pytest.mark.parametrize("queue", ["orders", "o*"])
def test_events_that_a_webhook_needs_are_no_change(sh: Shell, tmp_path: Path, queue: str) -> None:
    sh("queue", "create", "orders", "--event", "expired")
    copy = write(tmp_path / "export.toml", sh("export").stdout)
    hook = ("webhook", "add", "ops", "https://example.com/x", "--queue", queue)
    sh(*hook, "--event", "message.done")
    assert sh.json("apply", "-f", copy)["changes"] == []
    sh("queue", "update", "orders", "--event", "failed")
    (change,) = sh.json("apply", "-f", copy)["changes"]
    assert change["fields"] == {"events": [["done", "failed"], ["done", "expired"]]}
    assert sh.json("apply", "-f", copy)["changes"] == []


def test_an_export_by_label(sh: Shell) -> None:
    sh("queue", "create", "a", "--label", "team=money")
    sh("queue", "create", "b")
    sh("topic", "put", "orders")
    assert set(tomllib.loads(sh("export", "--label", "team=money").stdout)) == {"queues"}
    assert set(sh.json("export", "--label", "team=money")["queues"]) == {"a"}


@pytest.mark.parametrize(
    "line, field, number",
    [
        ("max_attempts = 0", "queues.billing.max_attempts", 10),
        ("max_attempts = 'x'", "queues.billing.max_attempts", 10),
        ("max_atempts = 1", "queues.billing.max_atempts", 10),
        ('filter = "amount >"', "queues.billing.filter", 10),
        ("filter = 7", "queues.billing.filter", 10),
        ("backoff = { base_ms = 'x' }", "queues.billing.backoff", 10),
        ("backoff = { base_ms = 9, max_ms = 1 }", "queues.billing.backoff", 10),
        ("labels.team = 7", "queues.billing.labels", 10),
        ("paused = 1", "queues.billing.paused", 10),
        ("[queues.'no spaces']", "queues.no spaces", 10),
        ("[queues.'billing.dlq']", "queues.billing.dlq", 10),
        ("[topics.new]\ndedup_window_ms = -1", "topics.new.dedup_window_ms", 11),
        ("[topics.new]\nschema_type = 'json-schema'\nschema = '{'", "topics.new.schema", 12),
        ("[topics.new]\ndefault_ttl_ms = '1d'", "topics.new.default_ttl_ms", 11),
        ("[topics.new]\ndedup_scope = 'queue'", "topics.new.dedup_scope", 11),
        ("[topics.new]\nqueue_defaults = { max_attempts = 0 }", "topics.new.queue_defaults", 11),
        ("[streams.new]", "streams", 10),
        ("queues = 1", "", 10),
        ("max_attempts = ", "", 10),
    ],
)
def test_a_bad_file_changes_nothing_and_names_the_line(
    sh: Shell, tmp_path: Path, line: str, field: str, number: int
) -> None:
    good = "[queues.first]\n\n[topics.orders]\ndefault_ttl_ms = 5\n\n[queues.second]\n"
    text = f"{good}\n[queues.billing]\ndescription = 'x'\n{line}\n\n[queues.last]\n"
    sh("queue", "create", "first", "--max-attempts", "2")
    before = state(sh)
    refused = sh("apply", "-f", write(tmp_path / "bad.toml", text), "--prune", "--yes", code=3)
    assert field in refused.stderr
    if field:
        assert f"line {number}: {field}" in refused.stderr.replace(tmp_path.as_posix(), "")
    assert state(sh) == before


def test_a_file_that_cannot_be_read(sh: Shell) -> None:
    assert "missing.toml" in sh("apply", "-f", "missing.toml", code=3).stderr
    assert "the input" in sh("apply", "-f", "-", stdin=b"\xff", code=3).stderr
    sh("apply", code=2)


@pytest.mark.parametrize(
    "before, line, fails",
    [
        ((), "ordering = 'partition'", False),
        ((), "bucket_size = 1", True),
        (("--retry-position", "back"), "retry_position = 'keep'", False),
    ],
)
def test_what_deliveries_forbid_is_refused_before_the_first_change(
    sh: Shell, tmp_path: Path, before: tuple[str, ...], line: str, fails: bool
) -> None:
    """The file alone does not show that the queue has deliveries, or dead letters."""
    sh("queue", "create", "busy", *before)
    sh("publish", "orders", "x")
    if fails:
        sh("queue", "update", "busy", "--max-attempts", "1")
        sh("consume", "busy", "--exec", "false")
    text = f"[topics.t]\n[queues.a]\n[queues.busy]\ndescription = 'x'\n{line}\n[queues.c]\n"
    file = write(tmp_path / "f.toml", text)
    was = state(sh)
    for dry_run in ((), ("--dry-run",)):
        refused = sh("apply", "-f", file, *dry_run, code=5)
        field = line.split(maxsplit=1)[0]
        assert f"f.toml, line 5: queues.busy.{field}: {field} of queue 'busy'" in refused.stderr
        assert state(sh) == was
    sh("cancel", "0")
    sh("apply", "-f", file)


def test_a_refusal_of_the_store_says_exactly_what_was_changed(
    sh: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another caller takes the last queue that a tenant may have, or the store has a failure."""
    sh("queue", "create", "old")
    text = "[topics.t]\n[queues.a]\n[queues.b]\n[queues.c]\n"
    file = write(tmp_path / "f.toml", text)
    create = Broker.create_queue

    async def refuse(self: Broker, name: str, filter: str = "TRUE", **policy: Any) -> QueueInfo:
        if name == "b":
            raise TooManyQueues("There are 2 queues.", field="queue", limit=2)
        return await create(self, name, filter, **policy)

    with monkeypatch.context() as patch:
        patch.setattr(Broker, "create_queue", refuse)
        refused = sh("apply", "-f", file, "--prune", "--yes", code=5)
        assert "2 of 5 changes were made: topic t, queue a." in refused.stderr
        assert "Not made: queue b, queue c, queue old." in refused.stderr
        refused = sh("apply", "-f", file, "--prune", "--yes", "--json", code=5)
        report = json.loads(refused.stdout)
        assert report["applied"] is False
        assert [(item["name"], item["made"]) for item in report["changes"]] == [
            ("b", False),
            ("c", False),
            ("old", False),
        ]
    report = sh.json("apply", "-f", file, "--prune", "--yes")
    assert report["applied"] is True
    assert [(item["name"], item["made"]) for item in report["changes"]] == [
        ("b", True),
        ("c", True),
        ("old", True),
    ]


def test_a_queue_that_another_caller_deletes_meanwhile_is_no_failure(
    sh: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sh("queue", "create", "old")
    sh("topic", "put", "old")
    for verb in ("delete_queue", "delete_topic"):
        delete = getattr(Broker, verb)

        async def twice(self: Broker, name: str, delete: Any = delete) -> None:
            await delete(self, name)
            await delete(self, name)

        monkeypatch.setattr(Broker, verb, twice)
    sh("apply", "-f", write(tmp_path / "f.toml", "[queues.a]\n"), "--prune", "--yes")
    assert [item["name"] for item in sh.json("queue", "list")] == ["a"]


def test_over_http(remote: Shell, tmp_path: Path) -> None:  # noqa: F811
    remote("apply", "-f", write(tmp_path / "queues.toml", FILE))
    copy = write(tmp_path / "export.toml", remote("export").stdout)
    assert remote.json("apply", "-f", copy, "--prune")["changes"] == []
