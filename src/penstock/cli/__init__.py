"""The command line ``penstock``: every verb from a shell, on a server or directly on a store.

One module per command or family of commands. They parse, call the verbs of ``penstock.api``
and print; they contain no queue semantics. A command imports its dependencies when it runs, so
that ``penstock --help`` and shell completion are fast.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from penstock.cli.exits import Exit
from penstock.cli.missing import find_missing, report

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line of this process."""
    arguments = sys.argv[1:]
    missing = find_missing(arguments, os.environ)
    if missing is not None:
        sys.stderr.write(report(missing, arguments, sys.prefix))
        sys.exit(Exit.UNAVAILABLE)
    # Needs click.
    from penstock.cli import program  # noqa: PLC0415

    program.main()
