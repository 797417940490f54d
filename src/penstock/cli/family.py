"""A group of commands that are listed as they are declared."""

from __future__ import annotations

import click

__all__ = ["Family"]


class Family(click.Group):
    """Lists its commands in the order that explains them, not by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As declared."""
        del ctx
        return list(self.commands)
