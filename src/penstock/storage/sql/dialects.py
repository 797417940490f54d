"""The modules of a dialect, imported on first use, so that only its stores need the driver."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final

from penstock.errors import BadUrl

__all__ = ["load_module"]

#: The database's name, its driver, and the extra of Penstock that installs the driver.
_DIALECTS: Final = {
    "postgresql": ("PostgreSQL", "asyncpg", "postgres"),
    "mysql": ("MySQL", "asyncmy", "mysql"),
}


def load_module(dialect: str, name: str) -> ModuleType:
    """Import a module of the dialect's package."""
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
