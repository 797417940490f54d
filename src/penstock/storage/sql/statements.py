"""Statements: one per file, loaded once, with named parameters."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Final

__all__ = ["PARAMETER", "load"]

#: ``:name``, but not the ``::type`` of a cast.
PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)


@cache
def load(dialect: str) -> dict[str, str]:
    """Every statement of a dialect by its file name, without comments."""
    folder = resources.files("penstock.storage.sql").joinpath(dialect, "statements")
    return {
        file.name.removesuffix(".sql"): _COMMENT.sub("", file.read_text()).strip().rstrip(";")
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    }
