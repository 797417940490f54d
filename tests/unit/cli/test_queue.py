"""``penstock queue``: what each command does, prints and refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell

FILTER = "topic = 'orders' AND amount >= 100"


def test_create_prints_the_policy(sh: Shell) -> None:
    result = sh("queue", "create", "billing", "--filter", FILTER, "--max-attempts", "3")
    assert f"filter                 {FILTER}" in result.stdout
    assert "max attempts           3" in result.stdout


def test_every_field_of_the_policy_has_an_option(sh: Shell) -> None:
    made = sh.json(
        *("queue", "create", "billing", "--filter", FILTER),
        *("--max-attempts", "3", "--visibility-timeout", "1m", "--min-lease", "1s"),
        *("--max-lease", "1h", "--backoff-base", "2s", "--backoff-max", "1m"),
        *("--done-retention", "1d", "--failed-retention", "0", "--max-depth", "1000"),
        *("--throughput-limit", "50", "--ordering", "partition", "--partition-batch", "2"),
        *("--partition-concurrency", "1", "--retry-position", "keep"),
        *("--bucket-size", "3", "--paused", "--no-dead-letters", "--description", "invoices"),
        *("--label", "team=billing", "--label", "tier=gold", "--message-ttl", "1h"),
        *("--dead-letter-topic", "dead", "--dead-letter-expired"),
        *("--event", "failed", "--event", "done"),
    )
    assert made["policy"] == {
        "filter": FILTER,
        "max_attempts": 3,
        "lease_ms": 60_000,
        "min_lease_ms": 1_000,
        "max_lease_ms": 3_600_000,
        "backoff": {"base_ms": 2_000, "max_ms": 60_000},
        "done_retention_s": 86_400,
        "failed_retention_s": 0,
        "max_depth": 1000,
        "message_ttl_ms": 3_600_000,
        "throughput_limit": 50,
        "ordering": "partition",
        "partition_concurrency": 1,
        "partition_batch": 2,
        "retry_position": "keep",
        "bucket_size": 3,
        "dead_letters": False,
        "dead_letter_topic": "dead",
        "dead_letter_expired": True,
        "paused": True,
        "description": "invoices",
        "labels": {"team": "billing", "tier": "gold"},
        "events": ["done", "failed"],
    }


def test_update_changes_what_is_given_and_nothing_else(sh: Shell) -> None:
    before = sh.json("queue", "create", "billing", "--filter", FILTER, "--max-depth", "10")
    after = sh.json("queue", "update", "billing", "--max-depth", "none", "--backoff-base", "5s")
    backoff = {**before["policy"]["backoff"], "base_ms": 5_000}
    assert after["policy"] == {**before["policy"], "max_depth": None, "backoff": backoff}
    assert after["filter_version"] == before["filter_version"]
    assert sh.json("queue", "update", "billing", "--filter", "TRUE")["filter_version"] == 2
    for given, stored in (("dead", "dead"), ("none", None)):
        changed = sh.json("queue", "update", "billing", "--dead-letter-topic", given)
        assert changed["policy"]["dead_letter_topic"] == stored


def test_update_gives_a_field_its_default_again(sh: Shell) -> None:
    sh("queue", "create", "billing", "--max-attempts", "9", "--lease", "2m", "--max-depth", "3")
    given = ("--default", "max_attempts", "--default", "max_depth", "--description", "x")
    policy = sh.json("queue", "update", "billing", *given)["policy"]
    assert (policy["max_attempts"], policy["max_depth"], policy["lease_ms"]) == (5, None, 120_000)
    assert policy["description"] == "x"
    twice = ("queue", "update", "billing", "--default", "lease_ms", "--lease", "1m")
    assert "lease_ms is given a value" in sh(*twice, code=2).stderr
    assert "'filter'" in sh("queue", "update", "billing", "--default", "filter", code=2).stderr


def test_update_without_a_change_is_a_usage_error(sh: Shell) -> None:
    sh("queue", "create", "billing")
    assert "nothing to change" in sh("queue", "update", "billing", code=2).stderr


def test_history_is_routed_before_create_returns(orders: Shell) -> None:
    made = orders.json("queue", "create", "audit", "--start", "earliest")
    assert made["cursor"] is None
    assert orders.json("queue", "show", "audit")["stats"]["available"] == 3


def test_dry_run_counts_and_creates_nothing(orders: Shell) -> None:
    orders.publish("four", topic="other")
    found = orders.json("queue", "create", "billing", "--filter", FILTER, "--dry-run")
    assert (found["count"], found["scanned"]) == (3, 4)
    assert [item["topic"] for item in found["sample"]] == ["orders"] * 3
    told = orders("queue", "create", "billing", "--filter", FILTER, "--dry-run").stdout
    assert told.startswith("3 of 4 messages in the log match\n")
    orders("queue", "show", "billing", code=4)


@pytest.mark.parametrize(
    "start, count", [("time:0", 3), ("time:9999-12-31", 0), ("offset:1", 2), ("earliest", 3)]
)
def test_a_dry_run_counts_from_the_start_on(orders: Shell, start: str, count: int) -> None:
    options = ("--filter", "amount = 1 OR amount = 100", "--start", start, "--dry-run")
    assert orders.json("queue", "create", "billing", *options)["count"] == count


@law("E1")
@pytest.mark.parametrize(
    "options, blamed",
    [
        (("--filter", "amount >"), "filter"),
        (("--max-attempts", "0"), "max_attempts"),
        (("--lease", "13h"), "lease_ms"),
        (("--visibility-timeout", "13h"), "lease_ms"),
        (("--dead-letter-topic", "a b"), "dead_letter_topic"),
        (("--backoff-base", "2m", "--backoff-max", "1m"), "backoff"),
    ],
)
def test_a_bad_policy_creates_nothing(sh: Shell, options: tuple[str, ...], blamed: str) -> None:
    result = sh("queue", "create", "billing", *options, code=3)
    assert blamed in result.stderr.lower() or "position" in result.stderr
    assert sh.json("queue", "list") == []


@pytest.mark.parametrize(
    "options",
    [
        ("--label", "team"),
        ("--label", "=x"),
        ("--max-depth", "many"),
        ("--ordering", "fifo"),
        ("--done-retention", "1500ms"),
    ],
)
def test_options_that_do_not_parse(sh: Shell, options: tuple[str, ...]) -> None:
    sh("queue", "create", "billing", *options, code=2)


def test_list(orders: Shell) -> None:
    orders("queue", "create", "empty", "--filter", "FALSE", "--paused")
    (empty, listed) = orders.json("queue", "list")
    assert (empty["name"], listed["name"], listed["stats"]["available"]) == ("empty", "orders", 3)
    head, first, second = orders("queue", "list").stdout.splitlines()
    assert head.split()[:2] == ["queue", "available"]
    assert first.startswith("empty (paused)")
    assert second.split()[:2] == ["orders", "3"]


def test_list_by_label(orders: Shell) -> None:
    orders("queue", "create", "a", "--label", "team=billing", "--label", "tier=gold")
    orders("queue", "create", "b", "--label", "team=billing")

    def found(*labels: str) -> list[str]:
        return [item["name"] for item in orders.json("queue", "list", *labels)]

    assert found("--label", "team=billing") == ["a", "b"]
    assert found("--label", "team=billing", "--label", "tier=gold") == ["a"]
    orders("queue", "update", "a", "--label", "none")
    assert found("--label", "tier=gold") == []


def test_an_empty_list_says_so_beside_the_output(sh: Shell) -> None:
    sh("topic", "put", "orders")
    result = sh("queue", "list")
    assert (result.stdout, result.stderr) == ("", "There are no queues.\n")
    assert sh.json("queue", "list") == []


def test_stats_are_a_line_a_queue(orders: Shell) -> None:
    orders("queue", "create", "copy", "--start", "earliest")
    assert [(item["queue"], item["available"]) for item in orders.lines("queue", "stats")] == [
        ("copy", 3),
        ("orders", 3),
    ]
    (one,) = orders.lines("queue", "stats", "orders")
    assert one["lag"] == 3
    orders("queue", "stats", "missing", code=4)


def test_show_has_policy_numbers_and_partitions(sh: Shell) -> None:
    sh("queue", "create", "orders", "--ordering", "partition")
    sh("publish", "orders", "x", "--partition-key", "customer-7")
    shown = sh("queue", "show", "orders").stdout
    assert "lease                  30s" in shown
    assert re.search(r"^available +1$", shown, re.MULTILINE)
    assert "customer-7" in shown


def test_explain(orders: Shell) -> None:
    assert "available" in orders("queue", "explain", "orders", "0").stdout
    why = orders.json("queue", "explain", "orders", "0")
    assert (why["deliverable"], why["state"]) == (True, "available")
    orders("queue", "explain", "orders", "99", code=4)


def test_pause_and_resume(orders: Shell) -> None:
    assert orders("queue", "pause", "orders").stdout == "paused orders\n"
    assert orders("consume", "orders").stdout == ""
    assert orders.json("queue", "resume", "orders")["policy"]["paused"] is False
    assert orders("consume", "orders").stdout == "one\ntwo\nthree\n"


def test_delete_asks_first(orders: Shell) -> None:
    """Nobody can answer in a pipe, so nothing is deleted there without --yes."""
    assert "--yes" in orders("queue", "delete", "orders", code=2).stderr
    assert orders("queue", "delete", "orders", "--yes").stdout == "deleted orders\n"
    orders("queue", "show", "orders", code=4)
    orders("queue", "delete", "orders", "--yes", code=4)


def test_purge_by_state_and_filter(orders: Shell, fail: Callable[[str], None]) -> None:
    orders.publish("small", options=("-H", "amount=1"))
    fail("orders")
    wanted = ("queue", "purge", "orders", "--state", "failed", "--where", "amount < 100", "--yes")
    assert orders.json(*wanted) == {"count": 1, "more": False}
    assert orders("queue", "purge", "orders", "--state", "failed", "--limit", "2", "--yes").stdout
    assert orders.json("queue", "show", "orders")["stats"]["failed"] == 1


def test_purging_what_is_in_flight_is_no_choice(orders: Shell) -> None:
    orders("queue", "purge", "orders", "--state", "in_flight", "--yes", code=2)
    orders("queue", "purge", "orders", "--state", "available", code=2)
    assert orders.json("queue", "show", "orders")["stats"]["available"] == 3


def test_a_queue_that_is_far_behind_is_left_to_the_pipeline(
    orders: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ROUTING", "pipeline")
    for module in ("penstock.cli.queue.commands", "penstock.opening"):
        monkeypatch.setattr(f"{module}.NEAR", 1)
    made = orders("queue", "create", "audit", "--start", "earliest", "--json")
    assert json.loads(made.stdout)["cursor"] == 0
    assert "penstock pipeline route audit" in made.stderr
    monkeypatch.setattr("penstock.cli.queue.commands.NEAR", 3)
    assert orders.json("queue", "create", "near", "--start", "earliest")["cursor"] is None
