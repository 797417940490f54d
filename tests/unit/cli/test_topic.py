"""``penstock topic``."""

from __future__ import annotations

from pathlib import Path

from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell


def test_put_show_list_delete(sh: Shell) -> None:
    window = ("--dedup-window", "1h", "--dedup-scope", "partition_key")
    sh("topic", "put", "orders", "--default-ttl", "7d", *window)
    assert sh.json("topic", "show", "orders") == {
        "name": "orders",
        "policy": {
            "default_ttl_ms": 604_800_000,
            "dedup_window_ms": 3_600_000,
            "schema_type": None,
            "schema": None,
            "queue_defaults": {},
            "dedup_scope": "partition_key",
        },
    }
    assert [item["name"] for item in sh.json("topic", "list")] == ["orders"]
    assert "7d" in sh("topic", "list").stdout
    sh("topic", "delete", "orders")
    assert sh.json("topic", "list") == []
    assert "not registered" in sh("topic", "show", "orders", code=4).stderr


def test_a_schema_from_a_file(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"type": "object"}')
    sh("topic", "put", "orders", "--schema-type", "json-schema", "--schema", "@order.json")
    assert sh.json("topic", "show", "orders")["policy"]["schema"] == '{"type": "object"}'


def test_queue_defaults(sh: Shell) -> None:
    sh("topic", "put", "orders", "--queue-defaults", '{"max_attempts": 2}')
    assert sh.json("topic", "show", "orders")["policy"]["queue_defaults"] == {"max_attempts": 2}
    sh("publish", "orders", "x")
    assert sh.json("queue", "show", "orders")["policy"]["max_attempts"] == 2


@law("E1")
def test_bad_input(sh: Shell) -> None:
    sh("topic", "put", "orders", "--queue-defaults", "[]", code=3)
    sh("topic", "put", "orders", "--queue-defaults", '{"max_attempts": 0}', code=3)
    sh("topic", "put", "orders", "--schema", "{}", code=3)
    sh("topic", "put", "orders", "--schema", "@missing", "--schema-type", "avro", code=3)
    sh("topic", "put", "orders", "--schema-type", "xml", code=2)
    sh("topic", "put", "no good", code=3)
