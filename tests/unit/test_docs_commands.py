"""Every command of Penstock that a document shows exists, with these options and arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.cli.program import program

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^ *```(?:sh|bash|console)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
#: A command, perhaps after a prompt or as the value of a variable.
COMMAND = re.compile(r"(?:^|\$\()\s*(?:\$ )?((?:[A-Z_]+=\S* )*)penstock (.*)")
#: The lower-case words after the name, in running text.
NAMED = re.compile(r"`penstock ((?:[a-z][a-z-]*\b ?)+)(?=[` ])")
#: What ends a command for the shell.
ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"}


def shown() -> Iterator[tuple[str, str]]:
    """Each command, and the document that shows it."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in BLOCK.findall(path.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if found := COMMAND.search(line):
                    yield path.relative_to(ROOT).as_posix(), found[2]


def words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[str] = []
    for word in lexer:
        if word in ENDS or set(word) <= set("|&;<>()"):
            break
        found.append(word)
    return found


def parse(arguments: list[str]) -> None:
    """Parse as the command line would, without running anything."""
    command: click.Command = program
    context: click.Context | None = None
    name = "penstock"
    while True:
        context = command.make_context(name, arguments, parent=context)
        if not isinstance(command, click.Group):
            return
        rest = [*context._protected_args, *context.args]
        found_name, found, arguments = command.resolve_command(context, rest)
        assert found is not None
        name, command = found_name or "", found


@pytest.mark.parametrize("document, command", sorted(set(shown())))
def test_a_command_of_a_document_exists(document: str, command: str) -> None:
    try:
        parse(words(command))
    except click.exceptions.Exit:
        pass  # --help
    except click.ClickException as error:
        pytest.fail(f"{document}: penstock {command}: {error.format_message()}")


def named() -> Iterator[tuple[str, str]]:
    """Commands in the running text of documents, of deploy/ and of errors."""
    kinds = {"docs": "*.md", "deploy": "*", "src": "*.py"}
    paths = [path for folder, kind in kinds.items() for path in (ROOT / folder).rglob(kind)]
    for path in [ROOT / "README.md", *paths]:
        if path.is_file() and path.suffix in {".md", ".py", ".yaml", ".toml", ".service"}:
            for command in NAMED.findall(path.read_text()):
                yield path.relative_to(ROOT).as_posix(), command


def test_a_command_in_running_text_exists() -> None:
    found = set(named())
    assert len(found) > 100
    assert [item for item in sorted(found) if not exists(item[1].split())] == []


def exists(arguments: list[str]) -> bool:
    """Whether the first words name a command or a family of commands."""
    command: click.Command = program
    context = click.Context(program)
    for word in arguments:
        if not isinstance(command, click.Group):
            return True
        found = command.get_command(context, word)
        if found is None:
            return False
        command = found
    return True


def test_a_command_that_does_not_exist_is_found() -> None:
    assert len(set(shown())) > 80
    assert not exists(["queue", "replay"])
    for wrong in ("publsh orders", "publish orders --heder a=1", "queue create"):
        with pytest.raises(click.ClickException):
            parse(words(wrong))
