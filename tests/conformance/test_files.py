"""The key-value engine over a journal and message files."""

import pytest

from penstock.storage.keyvalue.adapters.files import adapter
from penstock.testing.conformance import *  # noqa: F403
from penstock.testing.conformance import engine_factory

open_engine = engine_factory("files://{path}")


@pytest.fixture(autouse=True)
def no_file_system_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing syncs the whole file system: seconds on a busy disk, and no power is lost here."""
    monkeypatch.setattr(adapter, "sync_file_system", lambda _: None)
