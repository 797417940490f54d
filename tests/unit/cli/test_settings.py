"""``penstock config``, and that commands go by the settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from penstock.testing.laws import law
from tests.unit.cli.conftest import Shell


def effective(sh: Shell, *args: str) -> dict[str, object]:
    result = sh.run("config", "--json", *args)
    assert result.exit_code == 0, result.output
    return {item["name"]: item["value"] for item in json.loads(result.stdout)}


def test_a_flag_over_the_environment_over_the_file(
    sh: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock.toml").write_text('url = "http://file:1"\nport = 1\n')
    assert effective(sh)["url"] == "http://file:1"
    monkeypatch.setenv("PENSTOCK_URL", "http://environment:2")
    assert effective(sh)["url"] == "http://environment:2"
    assert effective(sh, "--url", "http://flag:3")["url"] == "http://flag:3"
    assert effective(sh)["port"] == 1


def test_secrets_are_masked(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CREDENTIAL", "psk_tell_nobody")
    monkeypatch.setenv("PENSTOCK_JWT_SECRET", "xyzzy-plugh")
    for form in ((), ("--json",), ("--toml",)):
        shown = sh.run("config", *form).stdout
        assert "***" in shown
        assert "tell_nobody" not in shown
        assert "xyzzy" not in shown


def test_the_toml_is_a_settings_file(sh: Shell, tmp_path: Path) -> None:
    text = sh.run("config", "--toml", "--url", "http://other:1").stdout
    assert tomllib.loads(text)["url"] == "http://other:1"
    (tmp_path / "mine.toml").write_text(text)
    assert effective(sh, "--config", "mine.toml")["url"] == "http://other:1"


def test_a_table_for_people(sh: Shell) -> None:
    shown = sh.run("config").stdout
    assert shown.splitlines()[0].split() == ["setting", "value", "source"]
    assert "auto_create" in shown
    assert "true" in shown


@law("E1")
@pytest.mark.parametrize(
    "text, told", [("prot = 1", "Did you mean port?"), ("port = 'x'", "port"), ("= 1", "cannot")]
)
def test_a_bad_settings_file(sh: Shell, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "penstock.toml").write_text(text)
    for command in ("config", "serve"):
        result = sh.run(command)
        assert result.exit_code == 3
        assert told in result.stderr


def test_a_store_is_opened_with_the_limits_of_the_settings(
    sh: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MAX_PAYLOAD_BYTES", "3")
    sh("publish", "orders", "four", code=3)
    monkeypatch.setenv("PENSTOCK_REQUIRE_TOPICS", "true")
    sh("publish", "orders", "abc", code=4)


def test_a_store_in_the_settings_does_not_bypass_the_server(
    orders: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the server's: opening it here would be refused, or worse, hide the server."""
    monkeypatch.setenv("PENSTOCK_STORE", orders.store)
    monkeypatch.setenv("PENSTOCK_URL", "http://127.0.0.1:1")
    assert orders.run("queue", "list").exit_code == 7
    assert orders.run("migrate").exit_code == 0


def test_a_credential_from_a_file(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("psk_x\n")
    assert effective(sh, "--credential-file", "key")["credential"] == "***"
    assert sh.run("queue", "list", "--credential-file", "missing").exit_code == 3


def test_variables_of_others_are_warned_of_once(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STOER", "elsewhere")
    for command in (("config", "--json"), ("queue", "list", "--store", "memory://")):
        result = sh.run(*command)
        assert result.exit_code == 0, result.output
        assert result.stderr.splitlines()[0] == (
            "warning: Ignored the environment variable 'PENSTOCK_STOER', which is not a setting. "
            "Did you mean PENSTOCK_STORE?"
        )
        assert result.stderr.count("PENSTOCK_STOER") == 1
