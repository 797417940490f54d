"""``penstock filter``: the position of a mistake, and completions."""

from __future__ import annotations

from tests.unit.cli.conftest import Shell


def test_a_filter_is_checked_without_a_store(sh: Shell) -> None:
    said = sh.run("filter", "validate", "topic = 'a' AND amount > 1").stdout
    assert [line.split() for line in said.splitlines()] == [
        ["valid", "yes"],
        ["indexed", "yes"],
        ["fields", "topic"],
        ["headers", "amount"],
    ]


def test_a_mistake_is_underlined(sh: Shell) -> None:
    result = sh.run("filter", "validate", "a IN\t(1, bad)")
    assert result.exit_code == 3
    assert result.stdout.splitlines()[1:] == ["a IN\\t(1, bad)", "          ^^^"]
    result = sh.run("filter", "validate", "a =", "--json")
    assert result.exit_code == 3
    assert '"position":3,"end":3' in result.stdout


def test_completions(sh: Shell) -> None:
    result = sh.run("filter", "complete", "am > 1", "--cursor", "2", "--header", "amount", "--json")
    assert result.stdout.strip() == (
        '{"start":0,"end":2,"items":[{"text":"amount","kind":"header"}]}'
    )
    assert "keyword" in sh.run("filter", "complete", "amount > 1 ").stdout
    assert sh.run("filter", "complete", "a", "--cursor", "2").exit_code == 3
