"""The command line in this process, on a store of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli.program import program


class Shell:
    """Runs commands; ``store`` is what they work on unless they say otherwise."""

    def __init__(self, store: str) -> None:
        self.store = store

    def run(self, *args: str, stdin: bytes | str | None = None) -> Result:
        """Run it as it stands."""
        result = CliRunner().invoke(program, args, input=stdin)
        # Whatever a command ends with, it is an exit code and never a traceback.
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    def __call__(self, *args: str, stdin: bytes | str | None = None, code: int = 0) -> Result:
        """Run it on the store, and expect its exit code."""
        result = self.run(*args, "--store", self.store, stdin=stdin)
        assert result.exit_code == code, result.output
        return result

    def json(self, *args: str, stdin: bytes | str | None = None) -> Any:
        """The JSON document that it prints."""
        return json.loads(self(*args, "--json", stdin=stdin).stdout)

    def lines(self, *args: str) -> list[Any]:
        """The JSON lines that it prints."""
        return [json.loads(line) for line in self(*args, "--json").stdout.splitlines()]

    def publish(self, *payloads: str, topic: str = "orders", options: Sequence[str] = ()) -> None:
        """Publish each of them."""
        self("publish", topic, "--lines", *options, stdin="\n".join(payloads))


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but the test's."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sh(tmp_path: Path) -> Shell:
    return Shell(f"rocksdb://{tmp_path}/store")


@pytest.fixture
def orders(sh: Shell) -> Shell:
    """A store with three messages in the queue ``orders``."""
    sh.publish("one", "two", "three", options=("-H", "amount=100"))
    return sh


@pytest.fixture
def fail(sh: Shell) -> Callable[[str], None]:
    """Makes every delivery of a queue fail, by a command that does."""

    def all_of(queue: str) -> None:
        sh("queue", "update", queue, "--max-attempts", "1")
        sh("consume", queue, "--exec", "false")

    return all_of
