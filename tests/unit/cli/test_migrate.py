"""``penstock migrate``, and what the other commands say of a database, on real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from penstock.storage.sql.migrations import known
from penstock.testing.laws import law
from tests.databases import PASSWORD, USER, Server, server
from tests.service.serving import PENSTOCK, unused_port
from tests.unit.cli.conftest import Shell

NAME = "commanded"


@pytest.fixture(params=["postgresql", "mysql"])
def database(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with an empty database."""
    found = server(request.param)
    found.drop_database(NAME)
    found.create_database(NAME)
    yield found
    found.drop_database(NAME)


def masked(found: Server) -> str:
    return f"{found.SCHEME}://{USER}:***@127.0.0.1:{found.port}/{NAME}"


def created(found: Server) -> list[str]:
    """What is created after the migrations."""
    return ["functions", "views"] if found.SCHEME == "postgresql" else ["views"]


def test_a_database_is_migrated_once(database: Server) -> None:
    sh = Shell(database.url(NAME))
    names = [item.name for item in known(database.SCHEME)]
    last = len(names)
    refusal = sh("queue", "list", code=7).stderr
    assert (
        f"error: The database has no Penstock schema; this Penstock needs schema {last}." in refusal
    )
    assert "penstock migrate --store" in refusal
    assert sh.json("migrate") == {
        "store": masked(database),
        "engine": database.SCHEME,
        "format": last,
        "migrated": True,
        "before": 0,
        "applied": [*names, *created(database)],
    }
    assert sh.json("migrate") == {
        "store": masked(database),
        "engine": database.SCHEME,
        "format": last,
        "migrated": False,
        "before": last,
        "applied": [],
    }
    expected = f"{masked(database)} has schema {last}, the current one: nothing to do\n"
    assert sh("migrate").stdout == expected


def test_what_was_done_is_said_in_words(database: Server) -> None:
    names = [item.name for item in known(database.SCHEME)]
    assert Shell(database.url(NAME))("migrate").stdout == (
        f"{masked(database)} had schema 0 and has schema {len(names)}, the current one: "
        f"applied {', '.join([*names, *created(database)])}\n"
    )


def test_a_store_in_a_database_is_used_like_any_other(database: Server) -> None:
    sh = Shell(database.url(NAME))
    sh("migrate")
    sh.publish("one", "two")
    assert [item["name"] for item in sh.json("queue", "list")] == ["orders"]
    assert sh("consume", "orders").stdout == "one\ntwo\n"


def test_several_processes_at_once(database: Server) -> None:
    command = [*PENSTOCK, "migrate", "--json", "--store", database.url(NAME)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    ended = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], ended
    assert [error for _, error in ended] == [b"", b"", b""]
    assert sorted(json.loads(output)["migrated"] for output, _ in ended) == [False, False, True]


@pytest.mark.parametrize("command", [["migrate"], ["queue", "list"], ["verify"], ["config"]])
@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_a_password_is_never_printed(command: list[str], dialect: str) -> None:
    """Not if nobody answers, not in a traceback, not among the settings."""
    secret = "hunter2@/#"
    for password in (quote(secret, safe=""), secret):
        store = f"{dialect}://me:{password}@127.0.0.1:{unused_port()}/store"
        done = Shell(store).run(*command, "--debug", "--store", store)
        assert "hunter2" not in done.output
        assert done.exit_code == (0 if command == ["config"] else 7 if "%" in password else 3)
        assert ("Traceback" in done.stderr) == bool(done.exit_code)


@law("E1")
def test_a_server_refuses_to_start_without_a_schema(database: Server) -> None:
    command = [*PENSTOCK, "serve", "--port", "0", "--store", database.url(NAME)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert "penstock migrate --store" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert quote(PASSWORD, safe="") not in done.stdout + done.stderr


def test_a_server_says_where_its_store_is_without_the_password(database: Server) -> None:
    Shell(database.url(NAME))("migrate")
    command = [*PENSTOCK, "serve", "--port", "0", "--json", "--store", database.url(NAME)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        assert json.loads(serving.stdout.readline())["store"] == masked(database)
        serving.terminate()
        _, log = serving.communicate(timeout=60)
    assert serving.returncode == 0
    assert quote(PASSWORD, safe="").encode() not in log


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for dialect, driver, extra in (
        ("postgresql", "asyncpg", "postgres"),
        ("mysql", "asyncmy", "mysql"),
    ):
        for name in [name for name in sys.modules if name.startswith("penstock.storage.sql.")]:
            if f".{dialect}" in name:
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, driver, None)
        refusal = Shell(f"{dialect}://db/store")("migrate", code=7).stderr
        assert f"pip install 'penstock[{extra}]'" in refusal
