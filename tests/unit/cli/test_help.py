"""Every command says what it does, with an example that is one of its own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from penstock.cli.program import program
from tests.unit.cli.conftest import Shell


def walk(
    command: click.Command = program, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from walk(child, (*path, name))


COMMANDS = list(walk())
each_command = pytest.mark.parametrize(
    "path, command", COMMANDS, ids=[" ".join(path) or "penstock" for path, _ in COMMANDS]
)


def test_the_commands_that_there_are() -> None:
    names = {" ".join(path) for path, _ in COMMANDS}
    verbs = ("create", "update", "list", "show", "delete", "pause", "resume", "purge", "explain")
    assert {f"queue {verb}" for verb in (*verbs, "stats")} <= names
    assert {f"topic {verb}" for verb in ("put", "list", "show", "delete")} <= names
    assert {f"key {verb}" for verb in ("create", "list", "revoke")} <= names
    assert {"serve", "publish", "consume", "tail", "peek", "replay", "work"} <= names
    assert {"verify", "bench", "migrate", "config", "message", "history", "result"} <= names


@each_command
def test_help(path: tuple[str, ...], command: click.Command) -> None:
    result = CliRunner().invoke(program, [*path, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: penstock")
    assert re.search(r"^  Examples?:$", result.stdout, re.MULTILINE), "no example"


@each_command
def test_a_list_of_commands_shows_whole_sentences(
    path: tuple[str, ...], command: click.Command
) -> None:
    """Click cuts what does not fit into a line."""
    if isinstance(command, click.Group):
        listed = CliRunner().invoke(program, [*path, "--help"]).stdout.partition("Commands:")[2]
        assert listed
        assert [line for line in listed.splitlines() if line.endswith("...")] == []


@each_command
def test_every_option_says_what_it_does(path: tuple[str, ...], command: click.Command) -> None:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} does not say what it does"


@each_command
def test_its_examples_parse(path: tuple[str, ...], command: click.Command) -> None:
    """An example names commands and options that exist, with values that they accept."""
    assert command.help is not None
    listed = re.split(r"Examples?:\n", command.help)[1].partition("\n\n")[0]
    examples = re.findall(r"^  .*?(penstock [a-z].*)$", listed, re.MULTILINE)
    assert len(examples) == len(listed.strip().splitlines())
    for example in examples:
        words = shlex.split(example.removesuffix(")"))[1:]
        ends = [place for place, word in enumerate(words) if word in ("|", ">")]
        parse(program, words[: min(ends, default=len(words))])


def parse(command: click.Command, words: list[str]) -> None:
    ctx = command.make_context("penstock", list(words), resilient_parsing=False)
    if isinstance(command, click.Group):
        rest = [*ctx._protected_args, *ctx.args]
        assert rest, "a family of commands is not an example"
        _, child, rest = command.resolve_command(ctx, rest)
        assert child is not None
        parse(child, rest)


@pytest.mark.parametrize("name", ["--json", "--debug", "--config"])
def test_shared_options_stand_on_every_command(name: str) -> None:
    for path, command in COMMANDS:
        if not isinstance(command, click.Group):
            options = [option for item in command.params for option in item.opts]
            assert name in options, path


def test_help_loads_nothing_heavy() -> None:
    """`penstock --help` and shell completion answer at once."""
    heavy = ("aiohttp", "uvloop", "pyarrow", "rich", "rocksdict")
    check = (
        "import sys\n"
        "from penstock.cli import program\n"
        "try: program.program.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip() == "[]"


def test_version(sh: Shell) -> None:
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", sh.run("--version").stdout)


def test_an_unknown_command_is_a_usage_error(sh: Shell) -> None:
    result = sh.run("publihs")
    assert result.exit_code == 2
    assert "publihs" in result.stderr


def test_shell_completion_knows_the_commands(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "penstock queue ex")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert sh.run().stdout == "plain,explain\n"
