"""Modules that are imported when a call first needs them, and not on the event loop.

Importing pyarrow takes half a second, and every caller would wait for it.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Final

from penstock.extras import importing

__all__ = ["ARROW_READS", "ARROW_WRITES", "load"]

ARROW_READS: Final = "penstock.server.bulk"
ARROW_WRITES: Final = "penstock.wire.arrow"

_loaded: set[str] = set()


async def load(name: str) -> None:
    """Import a module on a thread, the first time; after that an import statement is quick."""
    if name not in _loaded:
        with importing("arrow", "pyarrow"):
            await asyncio.to_thread(import_module, name)
        _loaded.add(name)
