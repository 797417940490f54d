"""``penstock peek``, ``replay``, ``message``, ``history`` and ``result``."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.unit.cli.conftest import Shell


def test_peek_consumes_nothing(orders: Shell) -> None:
    assert [item["message"]["id"] for item in orders.lines("peek", "orders")] == [0, 1, 2]
    assert orders("consume", "orders").stdout == "one\ntwo\nthree\n"


def test_peek_by_state_filter_and_limit(orders: Shell) -> None:
    orders("consume", "orders", "--limit", "1")
    orders.publish("small", options=("-H", "amount=1"))
    assert len(orders.lines("peek", "orders", "--state", "done")) == 1
    assert len(orders.lines("peek", "orders", "--where", "amount < 100")) == 1
    assert len(orders.lines("peek", "orders", "--limit", "2")) == 2
    assert "no such deliveries" in orders("peek", "orders", "--state", "failed").stderr


def test_peek_turns_as_many_pages_as_it_takes(sh: Shell) -> None:
    sh.publish(*map(str, range(2_500)))
    assert len(sh.lines("peek", "orders", "--limit", "2400")) == 2_400


def test_peek_shows_payloads_on_request(orders: Shell) -> None:
    assert "three" in orders("peek", "orders", "--payloads").stdout
    assert "three" not in orders("peek", "orders").stdout


def test_replay_by_filter(orders: Shell, fail: Callable[[str], None]) -> None:
    orders.publish("small", options=("-H", "amount=1"))
    fail("orders")
    wanted = ("replay", "orders", "--where", "amount < 100", "--replay-id", "ticket-1")
    would = orders.json(*wanted, "--dry-run")
    assert (would["count"], would["dry_run"], len(would["sample"])) == (1, True, 1)
    assert orders.json("queue", "show", "orders")["stats"]["failed"] == 4
    assert "would be replayed" in orders(*wanted, "--dry-run").stdout
    assert orders(*wanted).stdout == "1 delivery replayed\n"
    assert orders("consume", "orders").stdout == "small\n"
    assert orders.json(*wanted)["count"] == 0


def test_replay_by_id(orders: Shell, fail: Callable[[str], None]) -> None:
    fail("orders")
    first, second, _ = (line["message"]["id"] for line in orders.lines("peek", "orders.dlq"))
    wanted = ("replay", "orders", "--id", str(first), "--id", str(second))
    assert orders.json(*wanted, "--dry-run")["count"] == 2
    assert orders(*wanted).stdout == "2 deliveries replayed\n"
    assert orders("consume", "orders").stdout == "one\ntwo\n"
    orders("replay", "orders", "--id", "-1", code=3)
    orders("replay", "orders", "--id", "x", code=2)


def test_replay_from_done_and_from_the_log(orders: Shell) -> None:
    orders("consume", "orders")
    assert orders.json("replay", "orders", "--from", "done", "--limit", "1")["count"] == 1
    assert orders.json("replay", "orders", "--from", "log", "--rate", "1000")["count"] == 2
    orders("replay", "orders", "--from", "space", code=2)
    orders("replay", "orders", "--ttl", "0s", code=3)
    orders("replay", "missing", code=4)
    orders("replay", "orders", "--where", "amount >", code=3)


def test_replay_with_a_new_ttl(orders: Shell) -> None:
    orders("consume", "orders")
    reply = orders.json("replay", "orders", "--from", "done", "--limit", "1", "--ttl", "1h")
    expires_at = reply["sample"][0]["message"]["expires_at"]
    page = orders.json("peek", "orders")
    assert page["message"]["expires_at"] == expires_at


def test_message_with_where_it_stands(orders: Shell) -> None:
    orders("queue", "create", "copy", "--start", "earliest")
    found = orders.json("message", "0")
    assert [item["queue"] for item in found["deliveries"]] == ["copy", "orders"]
    told = orders("message", "0").stdout
    assert "headers    amount=100" in told
    assert "payload    one" in told
    orders("message", "99", code=4)
    orders("message", "first", code=2)


def test_history(orders: Shell) -> None:
    orders("consume", "orders", "--limit", "1")
    transitions = [event["transition"] for event in orders.json("history", "0")]
    assert transitions == ["publish", "claim", "ack"]
    assert orders("history", "0").stdout.splitlines()[0].split()[:3] == [
        "at",
        "queue",
        "transition",
    ]


def test_result_of_what_is_not_done(orders: Shell) -> None:
    result = orders("result", "orders", "0", "--wait", "1ms", code=4)
    assert "has not ended" in result.stderr


def test_result_byte_for_byte(orders: Shell) -> None:
    orders("consume", "orders")
    assert orders("result", "orders", "0").stdout_bytes == b""
    assert orders.json("result", "orders", "0")["message_id"] == 0


def test_result_of_a_failure(orders: Shell, fail: Callable[[str], None]) -> None:
    fail("orders")
    result = orders("result", "orders", "0", code=5)
    assert result.stderr.startswith("message 0 failed in orders after 1 attempt")
    assert result.stdout == ""
    result = orders("result", "orders", "0", "--json", code=5)
    assert json.loads(result.stdout)["status"] == "failed"


def test_cancel_in_one_queue_and_everywhere(orders: Shell) -> None:
    reply = orders.json("cancel", "1", "--queue", "orders")
    assert (reply["count"], reply["queues"]) == (1, ["orders"])
    assert "cancelled message 0 in orders" in orders("cancel", "0").stdout
    assert "in no queue" in orders("cancel", "0", "--queue", "orders").stdout
    assert orders("consume", "orders").stdout == "three\n"
    orders("cancel", "77", code=4)


def test_find_by_id_and_by_key(sh: Shell) -> None:
    sh("publish", "orders", "one", "--id", "mine")
    sh("publish", "orders", "two", "--key", "k")
    (found,) = sh.json("find", "orders", "--id", "mine")
    assert found["id"] == 0
    (found,) = sh.json("find", "orders", "--key", "k")
    assert found["key"] == "k"
    (found,) = sh.json("find", "orders", "--id", "mine", "--partition-key", "any")
    assert found["id"] == 0
    assert "no such message" in sh("find", "orders", "--id", "other").stderr
    sh("find", "orders", "--key", "k", "--partition-key", "any", code=3)
    sh("find", "orders", code=3)


def test_purge_by_ids(orders: Shell) -> None:
    text = ("queue", "purge", "orders", "--state", "available", "--yes")
    assert orders.json(*text, "--id", "0", "--id", "2")["count"] == 2
    assert orders("consume", "orders").stdout == "two\n"


@pytest.mark.parametrize("command", ["message", "history"])
def test_numbers_below_zero_are_not_found_or_refused(orders: Shell, command: str) -> None:
    assert orders.run(command, "--store", orders.store, "--", "-1").exit_code in (3, 4)
