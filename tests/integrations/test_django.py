"""Django's Tasks on Penstock, in processes of their own: Django has one configuration each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.integrations.django.backend import to_priority
from penstock.storage.sql.urls import parse
from tests.databases import server, store_url
from tests.integrations.programs import END_S, environment, run, running
from tests.service.serving import Served

HERE = Path(__file__).parent
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


def call(what: str, options: dict[str, Any], database: dict[str, Any] = SQLITE) -> dict[str, Any]:
    """What ``django_calls.py`` prints."""
    done = subprocess.run(
        [sys.executable, "django_calls.py", what],
        cwd=HERE,
        env=environment("")
        | {
            "TEST_DATABASES": json.dumps({"default": database}),
            "TEST_OPTIONS": json.dumps(options),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        },
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_results(served: Served) -> None:
    options = {"url": served.url, "policy": {"max_attempts": 3, "backoff": {"base_ms": 1}}}
    assert call("results", options) == {
        "before": "READY",
        "done": ["SUCCESSFUL", 5, [2], {"right": 3}, 1],
        "finished": True,
        "urgent": "SUCCESSFUL",
        "deferred": "READY",
        "retried": [3, 3],
        "errors": ["builtins.ValueError"] * 2,
        "failed": ["FAILED", "builtins.TypeError"],
        "failed_value": "ValueError",
        "unknown": "TaskResultDoesNotExist",
        "mismatch": "TaskResultMismatch",
        "bad_queue": "InvalidTaskError",
        "bad_priority": "InvalidTaskError",
    }


def test_a_rollback_enqueues_nothing(served: Served) -> None:
    assert call("transactions", {"url": served.url}) == {
        "rolled back": "TaskResultDoesNotExist",
        "inside": "TaskResultDoesNotExist",
        "committed": "no error",
        "outside": "no error",
    }


def test_a_task_is_part_of_the_transaction() -> None:
    url = store_url("postgresql", "djangotasks")
    address = parse(server("postgresql").url("djangotasks"))
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": address.database,
        "USER": address.user,
        "PASSWORD": address.password or "",
        "HOST": address.host,
        "PORT": address.port,
    }
    assert call("transactions", {"url": url, "transaction": "outbox"}, database) == {
        "rolled back": "TaskResultDoesNotExist",
        "inside": "TaskResultDoesNotExist",
        "committed": "no error",
        "outside": "no error",
    }


@pytest.mark.parametrize(
    "given, expected", [(-100, 0), (-99, 0), (-25, 3), (-1, 3), (0, 4), (1, 5), (50, 7), (100, 9)]
)
def test_priorities(given: int, expected: int) -> None:
    assert to_priority(given) == expected


def test_the_example(served: Served, tmp_path: Path) -> None:
    with running(served.url, "django_app.py", "penstock_worker", log=tmp_path / "worker.log"):
        assert run(served.url, "django_app.py") == "2 + 3 = 5\n"
