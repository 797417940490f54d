"""The command line ``penstock``: every verb from a shell, on a server or directly on a store.

One file a command or family of commands. They parse, call the verbs of ``penstock.verbs`` and
print; what a verb means is decided below. A command imports what it needs when it runs, so that
``penstock --help`` and shell completion answer at once.
"""

from __future__ import annotations

from penstock.cli.program import main

__all__ = ["main"]
