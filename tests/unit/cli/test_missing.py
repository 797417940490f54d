"""What a command says if its packages are not installed: one command that installs all of them."""

from __future__ import annotations

import pytest

from penstock.cli import missing
from penstock.cli.missing import Missing, find_missing, report


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    "command, store, extras",
    [
        ("serve", None, ("server", "rocksdb")),
        ("--json serve", None, ("server", "rocksdb")),
        ("serve --store memory:", None, ("server",)),
        ("serve --store=postgresql://db/p", None, ("server", "postgres")),
        ("serve", "slatedb+s3://bucket/path", ("server", "slatedb")),
        ("queue list", "mysql://db/p", ("cli",)),
        ("queue list --store mysql://db/p", None, ("cli", "mysql")),
        ("pipeline report", None, ("cli", "spark")),
        ("", None, ("cli",)),
    ],
)
def test_all_extras_of_a_command_are_named_at_once(
    command: str, store: str | None, extras: tuple[str, ...], nothing_installed: None
) -> None:
    environment = {} if store is None else {"PENSTOCK_STORE": store}
    assert find_missing(command.split(), environment) == Missing("click", extras)


def test_a_server_needs_more_than_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"click", "rich"}
    monkeypatch.setattr(missing, "find_spec", lambda name: name if name in installed else None)
    assert find_missing(["queue", "list"], {}) is None
    absent = Missing("prometheus_client", ("server", "rocksdb"))
    assert find_missing(["serve"], {}) == absent
    installed |= {"prometheus_client", "jwt", "cryptography"}
    assert find_missing(["serve"], {}) is None


def test_pipx_is_told_to_repeat_the_command() -> None:
    """The first line is for the environment that the command runs in."""
    arguments = ["serve", "--store", "rocksdb:my data"]
    again = "pipx run --spec 'penstock[server,rocksdb]' penstock serve --store 'rocksdb:my data'"
    install = "pip install 'penstock[server,rocksdb]'"
    absent = Missing("click", ("server", "rocksdb"))
    first, second = report(absent, arguments, "/home/a/.local/share/pipx/venvs/x").splitlines()
    assert (again in first, install in second) == (True, True)
    first, second = report(absent, arguments, "/opt/environment").splitlines()
    assert (install in first, again in second) == (True, True)
