"""How a test opens the engine under test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from penstock.storage.contract import Engine, EngineOptions

__all__ = ["Opener", "url_opener"]

#: Opens an engine; awaited if necessary. The path is an empty directory for the test.
Opener: TypeAlias = Callable[[EngineOptions, Path], Engine | Awaitable[Engine]]


def url_opener(url: str) -> Opener:
    """Open a store by its URL, with ``{path}`` in it replaced by the test's directory."""

    def opener(options: EngineOptions, path: Path) -> Awaitable[Engine]:
        from penstock.storage.engines import open_engine  # noqa: PLC0415  (only if it is used)

        return open_engine(url.replace("{path}", str(path / "store")), options)

    return opener
