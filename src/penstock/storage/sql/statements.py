"""Statements by name, with named parameters.

Each file in ``<dialect>/statements`` holds the statements of one subject. A line ``-- name: x``
introduces the statement ``x``; its comment and its text follow, up to the next such line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final

__all__ = ["PARAMETER", "load", "parse"]

#: ``:name``, but not the ``::type`` of a cast.
PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)


def parse(text: str) -> Iterator[tuple[str, str]]:
    """The names and the texts of the statements of a file, without comments."""
    _, *pieces = _NAME.split(text)
    for name, statement in zip(pieces[::2], pieces[1::2], strict=True):
        yield name, _COMMENT.sub("", statement).strip().rstrip(";")


@cache
def load(dialect: str) -> dict[str, str]:
    """Every statement of a dialect by its name."""
    folder = resources.files("penstock.storage.sql").joinpath(dialect, "statements")
    found: dict[str, str] = {}
    for file in folder.iterdir():
        if file.name.endswith(".sql"):
            for name, statement in parse(file.read_text(encoding="utf-8")):
                assert name not in found, f"two statements are named {name}"
                found[name] = statement
    return found
