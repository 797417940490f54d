"""A group of commands that are listed in the order of their declaration."""

from __future__ import annotations

import click

__all__ = ["Family"]


class Family(click.Group):
    """Lists its commands in the order of their declaration, not by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order of declaration."""
        del ctx
        return list(self.commands)
