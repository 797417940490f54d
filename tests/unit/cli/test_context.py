"""``penstock context``: named servers, and which one a command talks to."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.service.certificates import self_signed
from tests.unit.cli.conftest import Shell
from tests.unit.cli.test_server import PENSTOCK, served

URL = "http://queue.example.org:8080"


class Contexts(Shell):
    """Commands without a store; ``setting`` is what they would use."""

    def __init__(self, folder: Path) -> None:
        super().__init__("")
        self.file = folder / "configuration" / "penstock" / "contexts.toml"

    def __call__(self, *args: str, stdin: bytes | str | None = None, code: int = 0) -> Any:
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == code, result.output
        return result

    def setting(self, name: str, *args: str) -> tuple[object, str]:
        """The value and the source of a setting."""
        [found] = [item for item in self.json("config", *args) if item["name"] == name]
        return found["value"], found["source"]


@pytest.fixture
def sh(tmp_path: Path) -> Contexts:
    return Contexts(tmp_path)


def test_contexts_are_added_used_and_removed(sh: Contexts, tmp_path: Path) -> None:
    (tmp_path / "prod.key").write_text("secret")
    assert sh.json("context", "list") == []
    sh("context", "add", "local", "http://127.0.0.1:8080")
    sh("context", "add", "prod", URL, "--credential-file", "prod.key")
    assert tomllib.loads(sh.file.read_text()) == {
        "contexts": {
            "local": {"url": "http://127.0.0.1:8080"},
            # Absolute, so that it works in any directory.
            "prod": {"url": URL, "credential_file": str(tmp_path / "prod.key")},
        }
    }
    assert sh.file.stat().st_mode & 0o777 == 0o600
    assert sh.file.parent.stat().st_mode & 0o777 == 0o700
    sh("context", "use", "prod")
    assert [(item["name"], item["current"]) for item in sh.json("context", "list")] == [
        ("local", False),
        ("prod", True),
    ]
    assert "*" in sh("context", "list").stdout
    sh("context", "remove", "prod")
    assert tomllib.loads(sh.file.read_text()) == {
        "contexts": {"local": {"url": "http://127.0.0.1:8080"}}
    }
    # Nothing else is left in the folder.
    assert list(sh.file.parent.iterdir()) == [sh.file]


def test_a_context_is_replaced_only_if_asked(sh: Contexts) -> None:
    sh("context", "add", "prod", URL)
    assert "--replace" in sh("context", "add", "prod", "http://other:1", code=3).stderr
    assert sh.json("context", "list")[0]["url"] == URL
    sh("context", "add", "prod", "http://other:1", "--replace")
    assert sh.json("context", "list")[0]["url"] == "http://other:1"


def test_no_context_is_used_after_use_none(sh: Contexts) -> None:
    sh("context", "add", "prod", URL)
    sh("context", "use", "prod")
    assert sh.setting("url") == (URL, "context prod")
    sh("context", "use", "--none")
    assert sh.setting("url")[1] == "default"
    sh("context", "use", code=2)
    sh("context", "use", "prod", "--none", code=2)


def test_which_source_decides(
    sh: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the weakest to the strongest."""
    for name in ("used", "variable", "flag"):
        sh("context", "add", name, f"http://{name}:1")
    sh("context", "use", "used")
    assert sh.setting("url") == ("http://used:1", "context used")
    (tmp_path / "penstock.toml").write_text('url = "http://file:1"\n')
    assert sh.setting("url")[0] == "http://file:1"
    monkeypatch.setenv("PENSTOCK_CONTEXT", "variable")
    assert sh.setting("url") == ("http://variable:1", "context variable")
    monkeypatch.setenv("PENSTOCK_URL", "http://environment:1")
    assert sh.setting("url")[0] == "http://environment:1"
    assert sh.setting("url", "--context", "flag") == ("http://flag:1", "context flag")
    assert sh.setting("url", "--url", "http://url:1") == ("http://url:1", "flag --url")
    result = sh.run("--context", "flag", "config", "--url", "http://url:1", "--json")
    assert '"http://url:1"' in result.stdout
    message = sh("config", "--context", "flag", "--url", "http://url:1", code=2).stderr
    assert "--url and --context exclude each other" in message
    sh("queue", "list", "--context", "flag", "--store", "memory://", code=2)


def test_a_credential_stays_with_its_server(
    sh: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("secret")
    sh("context", "add", "with", URL, "--credential-file", "key")
    sh("context", "add", "without", URL)
    monkeypatch.setenv("PENSTOCK_CREDENTIAL", "of-another-server")
    assert sh.setting("credential")[1] == "environment PENSTOCK_CREDENTIAL"
    assert sh.setting("credential", "--context", "with")[1] == "context with"
    assert sh.setting("credential", "--context", "without") == (None, "default")
    given = sh.setting("credential", "--context", "without", "--credential", "given")
    assert given[1] == "flag --credential"


@pytest.mark.parametrize(
    "arguments, field",
    [
        (["no spaces", URL], "context"),
        (["prod", "ftp://host"], "url"),
        (["prod", URL, "--ca", "missing.pem"], "missing.pem"),
        (["prod", URL, "--credential-file", "."], "'.'"),
        (["prod", URL, "--cert-key", "key.pem"], "--cert"),
    ],
)
def test_a_bad_context_is_refused(sh: Contexts, arguments: list[str], field: str) -> None:
    assert field in sh("context", "add", *arguments, code=3).stderr
    assert not sh.file.exists()


def test_a_context_that_is_missing(sh: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    sh("context", "add", "prod", URL)
    for command in (("use", "pord"), ("remove", "pord")):
        assert "there are: prod" in sh("context", *command, code=3).stderr
    assert "flag --context" in sh("queue", "list", "--context", "pord", code=3).stderr
    monkeypatch.setenv("PENSTOCK_CONTEXT", "pord")
    assert "environment PENSTOCK_CONTEXT" in sh("queue", "list", code=3).stderr
    # It is not an unknown setting.
    assert "Ignored" not in sh("queue", "list", "--store", "memory://").stderr


@pytest.mark.parametrize(
    "content, named",
    [
        ("contexts = 7", "contexts"),
        ("[contexts.prod]\nurl = 7", "$.contexts"),
        ("[contexts.prod]\nurl = 'http://x'\ncrendential_file = 'x'", "crendential_file"),
        ("[contexts\n", "line 1"),
    ],
)
def test_a_file_that_cannot_be_read(sh: Contexts, content: str, named: str) -> None:
    sh.file.parent.mkdir(parents=True)
    sh.file.write_text(content)
    message = sh("context", "list", code=3).stderr
    assert str(sh.file) in message
    assert named in message
    sh("context", "add", "prod", URL, code=3)
    assert sh.file.read_text() == content
    sh("queue", "list", code=3)
    sh("queue", "list", "--store", "memory://")


def test_a_failed_write_changes_nothing(sh: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    sh("context", "add", "prod", URL)
    before = sh.file.read_text()

    def fail(self: Path, target: Path) -> Path:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "replace", fail)
    assert "the disk is full" in sh("context", "use", "prod", code=3).stderr
    assert sh.file.read_text() == before
    assert list(sh.file.parent.iterdir()) == [sh.file]


WORKERS = """
import penstock

app = penstock.App()


@app.worker("orders", filter="topic = 'orders'")
async def work(payload: str) -> str:
    return payload.upper()
"""


def test_commands_on_a_secured_server(
    sh: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """URL, credential and certificate authority come from the context."""
    pair = self_signed(tmp_path)
    store = f"rocksdb://{tmp_path}/server"
    flags = ("--auth", "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    with served("--store", store, *flags) as told:
        (tmp_path / "key").write_text(told["key"] + "\n")
        files = ("--credential-file", "key", "--ca", str(pair.cert))
        sh("context", "add", "prod", told["url"], *files)
        sh("queue", "list", "--url", told["url"], "--ca", str(pair.cert), code=8)
        with monkeypatch.context() as environment:
            environment.setenv("PENSTOCK_URL", told["url"])
            environment.setenv("PENSTOCK_CREDENTIAL_FILE", str(tmp_path / "key"))
            sh("queue", "list", code=7)
            environment.setenv("PENSTOCK_CA", str(pair.cert))
            listed = sh("queue", "list", "--json")
            assert (listed.stdout, listed.stderr) == ("[]\n", "")
            # A server without TLS needs none.
            sh("queue", "list", "--url", "http://127.0.0.1:9", code=7)
            environment.setenv("PENSTOCK_CA", "/nowhere.pem")
            sh("queue", "list", code=3)
        sh("queue", "create", "orders", "--filter", "topic = 'orders'", "--context", "prod")
        sh("context", "use", "prod")
        assert len(sh.json("key", "list")) == 1
        published = sh.json("publish", "orders", "seven")
        (tmp_path / "workers.py").write_text(WORKERS)
        worker = [*PENSTOCK, "work", "workers", "--context", "prod"]
        with subprocess.Popen(worker, cwd=tmp_path) as working:
            try:
                identity = str(published["id"])
                result = sh.json("result", "orders", identity, "--wait", "30s")
            finally:
                working.terminate()
                working.wait(60)
        assert result["status"] == "done"
        assert working.returncode == 0
