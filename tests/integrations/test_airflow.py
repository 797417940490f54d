"""Airflow on Penstock: its own triggerer, killed and started again, with its own database."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import sync
from tests.integrations.programs import EXAMPLES, kill
from tests.service.serving import Served, surroundings

#: Where scripts/airflow-environment installs what does not fit this environment.
BIN = Path(sys.prefix) / "airflow" / "bin"
SOURCE = Path(__file__).parents[2] / "src"
STREAMS = Path(__file__).with_name("airflow_streams.py")
#: Airflow's commands, in one process because importing it takes seconds.
PREPARE = """
import sys
from airflow.__main__ import main
for command in (["db", "migrate"], ["dags", "reserialize"]):
    sys.argv = ["airflow", *command]
    main()
"""
END_S = 240


class Airflow:
    """An installation with one folder of DAGs, and the connection to a server."""

    def __init__(self, home: Path, connection: str, name: str = "penstock") -> None:
        assert BIN.exists(), f"{BIN} is missing: run scripts/airflow-environment"
        self.home = home
        self.environment = surroundings() | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES / "airflow_dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # Nobody watches the queue of a paused DAG.
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            # A triggerer that is killed is missed after three times as long.
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            f"AIRFLOW_CONN_{name.upper()}": connection,
            "PYTHONPATH": str(SOURCE),
        }

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [BIN / "python", *arguments],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=END_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def triggerer(self) -> Iterator[None]:
        """A triggerer in a process group of its own, which is killed at the end."""
        with (self.home / "triggerer.log").open("ab") as log:
            process = subprocess.Popen(
                [BIN / "airflow", "triggerer", "--skip-serve-logs"],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield
        finally:
            kill(process)

    def events(self) -> list[dict[str, Any]]:
        """What Airflow has stored, oldest first."""
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=END_S)) as database:
            rows = database.execute("SELECT extra FROM asset_event ORDER BY id").fetchall()
        return [json.loads(extra)["payload"] for (extra,) in rows]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < end, "see triggerer.log"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_triggerer_loses_no_message(served: Served, tmp_path: Path) -> None:
    airflow = Airflow(tmp_path, served.url)
    airflow.run("-c", PREPARE)
    with sync.connect(served.url) as q:
        q.create_queue("orders", "topic = 'orders'", lease_ms=2_000)
        ids = [q.publish("orders", {"id": number}).id for number in range(150)]
        with airflow.triggerer():
            # It holds a delivery until its event is in the database.
            until(lambda: q.stats("orders").in_flight > 0)
        left = len(ids) - q.stats("orders").done
        assert left > 0
        with airflow.triggerer():
            until(lambda: q.stats("orders").done == len(ids))
    events = airflow.events()
    assert {event["message"]["id"] for event in events} == set(ids)
    first = events[0]
    assert (first["queue"], first["message"]["topic"]) == ("orders", "orders")
    assert sorted({event["payload"]["id"] for event in events}) == list(range(150))


def test_what_becomes_of_a_delivery(served: Served, tmp_path: Path) -> None:
    found = json.loads(Airflow(tmp_path, served.url).run(str(STREAMS), served.url).splitlines()[-1])
    released = {"waiting": 1, "done": 0, "counted": 0, "error": None}
    assert found == {
        "stored": {"waiting": 0, "done": 1, "counted": 1, "error": None},
        "cancelled_before_it_was_queued": released,
        "ended_before_it_was_stored": released,
        "never_stored": {
            "waiting": 1,
            "done": 0,
            "counted": 1,
            "error": "Airflow did not store the event within its ack timeout.",
        },
        # The task gets the first of three messages.
        "task": {"waiting": 2, "done": 1, "counted": 1, "error": None},
    }
