"""``penstock verify``, ``migrate``, ``bench`` and ``key`` on a store."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.broker import Broker
from penstock.model.clock import SystemClock
from penstock.model.delivery import QueueStats
from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell


def test_a_sound_store_verifies(orders: Shell) -> None:
    orders("consume", "orders", "--limit", "1")
    report = orders.json("verify")
    assert {check["law"] for check in report["checks"]} >= {"P3", "S3", "Q2", "X1"}
    assert sum(check["violation_count"] for check in report["checks"]) == 0
    assert (report["deep"], report["log_entries"]) == (True, 3)
    assert orders("verify", "orders", "--quick").stdout.endswith(": 0 violations\n")
    orders("verify", "missing", code=4)


@law("Q2")
def test_a_wrong_count_is_a_violation_and_names_the_queue(
    orders: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from msgspec.structs import replace

    stats = Broker.stats

    async def wrong(self: Broker, queue: str) -> QueueStats:
        found = await stats(self, queue)
        return replace(found, available=found.available + 1)

    monkeypatch.setattr(Broker, "stats", wrong)
    result = orders("verify", code=9)
    assert "violation: Q2 queue 'orders'" in result.stdout
    result = orders("verify", "--json", code=9)
    violated = [item for item in json.loads(result.stdout)["checks"] if item["violations"]]
    assert "Q2" in [item["law"] for item in violated]


def test_migrate_says_the_format(orders: Shell) -> None:
    assert orders.json("migrate") == {
        "store": orders.store,
        "engine": "rocksdb",
        "format": 1,
        "migrated": False,
    }
    assert "nothing to do" in orders("migrate").stdout
    assert orders.run("migrate", "--store", "rocksdb:missing").exit_code == 7


def test_bench_measures_beside_the_store_and_leaves_nothing(orders: Shell, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    figures = orders.json("bench", "--seconds", "0.01")
    assert [figure["work"].split(",")[0] for figure in figures] == [
        "publish",
        "publish",
        "claim and ack",
    ]
    for figure in figures:
        assert figure["messages_per_second"] > 0
        ratio = figure["messages_per_second"] / figure["disk_per_second"]
        assert figure["ratio"] == pytest.approx(ratio)
    assert sorted(tmp_path.iterdir()) == before
    assert orders.json("queue", "list")[0]["stats"]["available"] == 3
    assert "ratio" in orders("bench", "--seconds", "0.01").stdout
    orders("bench", "--folder", "missing", code=3)


def test_keys_are_made_listed_and_revoked(sh: Shell) -> None:
    before = SystemClock().now()
    options = ("--name", "shop", "--expires", "90d", "--requests-per-s", "50")
    made = sh("key", "create", "--grant", "publish:orders-*", *options)
    assert made.stdout.startswith("psk_")
    assert "not shown again" in made.stderr
    (listed,) = sh.json("key", "list")
    assert (listed["name"], listed["grants"]) == ("shop", ["publish:orders-*"])
    # The command adds the duration to its own time, and then has the key made.
    assert before <= listed["expires_at"] - 90 * 86_400_000 <= listed["created_at"]
    assert made.stdout.strip() not in json.dumps(listed)
    assert re.search(r"shop +publish:orders-\* +50 ", sh("key", "list").stdout)
    assert sh("key", "revoke", listed["id"]).stdout == f"revoked {listed['id']}\n"
    sh("key", "revoke", listed["id"], code=4)
    assert sh.json("key", "list") == []


@law("E1")
def test_a_key_without_a_sound_grant(sh: Shell) -> None:
    sh("key", "create", code=2)
    sh("key", "create", "--grant", "everything", code=3)
    sh("key", "create", "--grant", "read:*", "--requests-per-s", "0", code=3)


@law("T1")
def test_keys_belong_to_a_tenant(sh: Shell) -> None:
    made = sh.json("key", "create", "--grant", "admin:*", "--tenant", "other")
    assert made["info"]["tenant"] == "other"
    assert sh.json("key", "list") == []
    sh("key", "revoke", made["info"]["id"], code=4)
