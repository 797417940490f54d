"""``penstock filter``: checks and completes filters, without a server or a store."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import printing
from penstock.cli.exits import Exit
from penstock.cli.options import Family, printing_options
from penstock.cli.printing import Column, safe
from penstock.filters import Completion, Diagnosis

__all__ = ["filters"]

_COMPLETIONS: Final[tuple[Column[Completion], ...]] = (
    Column("text", lambda item: item.text, style="bold"),
    Column("kind", lambda item: item.kind),
)


@click.group("filter", cls=Family)
def filters() -> None:
    """Check and complete filters; for editors and scripts.

    \b
    Examples:
      penstock filter validate "topic = 'orders' AND amount >= 100"
      penstock filter complete "topic = 'orders' AND am" --header amount
    """


@filters.command("validate")
@click.argument("text")
@printing_options
def validate(text: str) -> None:
    """Say whether TEXT is a filter, or which part of it is wrong.

    Exits with 3 if it is none.

    \b
    Examples:
      penstock filter validate "amount >= 100"
      penstock filter validate "a IN (1, b)" --json
    """
    from penstock.filters import validate as check  # noqa: PLC0415

    found = check(text)
    if not printing.as_json(found):
        _print(text, found)
    if not found.valid:
        click.get_current_context().exit(Exit.BAD_INPUT)


@filters.command("complete")
@click.argument("text")
@click.option("--cursor", type=int, help="An offset in TEXT, in characters; the end by default.")
@click.option("--header", "headers", multiple=True, help="The name of a header; may be repeated.")
@printing_options
def complete(text: str, cursor: int | None, headers: tuple[str, ...]) -> None:
    """List what may stand at the cursor of TEXT.

    With --json the answer also has the range of TEXT to replace.

    \b
    Examples:
      penstock filter complete "topic = 'orders' AND "
      penstock filter complete "am >= 100" --cursor 2 --header amount --json
    """
    from penstock.filters import complete as find  # noqa: PLC0415

    found = find(text, len(text) if cursor is None else cursor, headers)
    if not printing.as_json(found):
        printing.table(_COMPLETIONS, found.items, "Nothing fits there.")


def _print(text: str, found: Diagnosis) -> None:
    if found.valid:
        names = [("fields", found.fields), ("headers", found.headers)]
        lists = [(name, ", ".join(values)) for name, values in names]
        printing.fields([("valid", True), ("indexed", found.indexed), *lists])
        return
    click.echo(safe(found.message or "not a filter"))
    if found.position is not None:
        length = max(1, (found.end or found.position) - found.position)
        # Each character that is shown as an escape is as wide as its escape.
        before = len(safe(text[: found.position]))
        width = max(1, len(safe(text[found.position : found.position + length])))
        click.echo(safe(text))
        click.echo(" " * before + "^" * width)
