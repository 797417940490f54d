"""The modules of a dialect, loaded when its first store is opened: only then a driver is needed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final

from penstock.errors import BadUrl

__all__ = ["load_module"]

#: What a database is called, its driver, and the extra of Penstock's that installs it.
_DIALECTS: Final = {
    "postgresql": ("PostgreSQL", "asyncpg", "postgres"),
    "mysql": ("MySQL", "asyncmy", "mysql"),
}


def load_module(dialect: str, name: str) -> ModuleType:
    """A module of the dialect's folder."""
    try:
        return import_module(f"penstock.storage.sql.{dialect}.{name}")
    except ImportError as error:
        title, driver, extra = _DIALECTS[dialect]
        if (error.name or "").partition(".")[0] != driver:
            raise
        raise BadUrl(
            f"The driver of {title} is not installed: pip install 'penstock[{extra}]'.",
            field="url",
        ) from error
