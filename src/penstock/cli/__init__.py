"""The command line ``penstock``: every verb from a shell, on a server or directly on a store.

One module per command or family of commands. They parse, call the verbs of ``penstock.api``
and print; they contain no queue semantics. A command imports its dependencies when it runs, so
that ``penstock --help`` and shell completion are fast.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from penstock.cli.exits import Exit
from penstock.errors import MissingExtra
from penstock.extras import require

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line of this process."""
    try:
        require("cli", "click", "rich")
    except MissingExtra as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(Exit.UNAVAILABLE)
    # Needs click.
    from penstock.cli import program  # noqa: PLC0415

    program.main()
