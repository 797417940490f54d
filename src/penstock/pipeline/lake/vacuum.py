"""Removes files that left the lake: those that a compaction or a newer history replaced.

They stay for a while, for readers that opened the lake before and for earlier versions of the
tables. Files of the current version are never removed.
"""

from __future__ import annotations

from typing import Final

from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import TABLES, data_commit
from penstock.pipeline.lake.manifest import Manifest

__all__ = ["RETENTION_HOURS", "expired_files"]

#: As the property ``delta.deletedFileRetentionDuration`` of the tables says.
RETENTION_HOURS: Final = 7 * 24


def expired_files(files: Files, hours: int) -> dict[str, int]:
    """The sizes of the files that left the lake more than these hours ago, by path."""
    manifest = Manifest(files)
    lake = manifest.refresh()
    found: dict[str, int] = {}
    for table in TABLES:
        there, number = files.walk(table), lake.number_of(table)
        for path in manifest.expired(table, hours):
            # A file is added by the commit that it is named after, or never. So one of a commit
            # that was made already does not come back, even if a run is archiving now.
            made_for = data_commit(path)
            if made_for is None or made_for > number or path in lake.files:
                continue
            if path in there:
                found[path] = there[path]
    return found
