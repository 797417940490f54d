"""Statements by name: each is defined once per dialect, and the code uses all of them."""

from __future__ import annotations

import ast
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Final

import pytest

from penstock.storage.sql.statements import PARAMETER, load, parse
from penstock.storage.sql.transfer.tables import TABLES, statements

#: The statements that only one dialect has.
ONLY_POSTGRESQL: Final = {
    *("announce_publishing", "oldest_publishing", "publish", "write", "write_publishing"),
    *("write_first", "first_row_keys", "look_at_first_groups", "functions_checksum"),
}
ONLY_MYSQL: Final = {
    *("insert_groups", "replace_groups", "remove_groups", "count", "count_partitions", "version"),
    *("take_ticket", "tickets", "clear_tickets"),
    *("due_row_keys", "empty_partitions"),
}
#: Statements whose parameters differ between the dialects; only the adapters run them.
OTHER_PARAMETERS: Final = {"first_groups", "due_groups", "first_group", "wait_for_first_group"}
SOURCE: Final = Path(str(resources.files("penstock.storage.sql")))


def test_a_line_introduces_each_statement() -> None:
    text = "-- A title.\n\n-- name: one\n-- Why.\nSELECT 1;\n\n-- name: two\nSELECT\n  -- x\n  2\n"
    assert dict(parse(text)) == {"one": "SELECT 1", "two": "SELECT\n\n  2"}


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_names_are_unique_and_texts_are_single_statements(dialect: str) -> None:
    files = sorted((SOURCE / dialect / "statements").iterdir())
    names = Counter(name for file in files for name, _ in parse(file.read_text()))
    assert {name: count for name, count in names.items() if count > 1} == {}
    assert names.keys() == load(dialect).keys()
    assert not [name for name, text in load(dialect).items() if not text or ";" in text]


def test_the_dialects_have_the_same_files_and_statements() -> None:
    folders = [(SOURCE / dialect / "statements").iterdir() for dialect in ("postgresql", "mysql")]
    ours, theirs = [{file.name for file in folder} for folder in folders]
    assert ours == theirs
    mysql, postgresql = load("mysql"), load("postgresql")
    assert postgresql.keys() - mysql.keys() == ONLY_POSTGRESQL
    assert mysql.keys() - postgresql.keys() == ONLY_MYSQL
    for name in (mysql.keys() & postgresql.keys()) - OTHER_PARAMETERS:
        taken = set(PARAMETER.findall(mysql[name]))
        text = postgresql[name]
        assert taken == ({"rows"} if "$1" in text else set(PARAMETER.findall(text))), name


def test_the_code_uses_every_statement_and_no_other() -> None:
    words: set[str] = set()
    #: By the folder that runs them: a dialect's, or any other, whose name is empty.
    run: dict[str, set[str]] = {"postgresql": set(), "mysql": set(), "": set()}
    for file in SOURCE.rglob("*.py"):
        folder = file.relative_to(SOURCE).parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Constant(value=str(word)):
                    words.add(word)
                case ast.Call(
                    func=ast.Attribute(attr="fetch" | "run" | "write", value=caller),
                    args=[ast.Constant(value=str(name)), *_],
                ) if ast.unparse(caller).endswith("session"):
                    run[folder if folder in run else ""].add(name)
                case _:
                    pass
    postgresql, mysql = known("postgresql"), known("mysql")
    # The names of statements for each table are made where they run.
    of_tables = {
        f"{verb}_{table.name}" for verb in ("first", "next", "into", "number") for table in TABLES
    }
    assert (postgresql | mysql) - of_tables <= words
    # A dialect's adapter runs what that dialect has.
    assert run["postgresql"] <= postgresql
    assert run["mysql"] <= mysql
    # All else runs only what both dialects have, or what ``Database`` declares as optional.
    assert run[""] - (postgresql & mysql) <= ONLY_POSTGRESQL


def known(dialect: str) -> set[str]:
    """The statements in the dialect's files, and those that copies of stores add to them."""
    files, copies = load(dialect).keys(), statements(dialect).keys()
    assert not files & copies, "a copy would replace a statement of the engine"
    return files | copies
