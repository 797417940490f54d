"""Asking before something is removed for good."""

from __future__ import annotations

import sys

import click

__all__ = ["confirm"]


def confirm(question: str, yes: bool) -> None:
    """Go on if the person says so, or has said so with ``--yes``; nobody to ask is a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is nobody to ask: give --yes.")
    click.confirm(question, abort=True, err=True)
