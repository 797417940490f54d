"""The command line ``penstock``: every verb from a shell, on a server or directly on a store.

One module per command or family of commands. They parse, call the verbs of ``penstock.api``
and print; they contain no queue semantics. A command imports its dependencies when it runs, so
that ``penstock --help`` and shell completion are fast.
"""

from __future__ import annotations

from penstock.cli.program import main

__all__ = ["main"]
