"""Removes files that left the lake: those that a compaction or a newer history replaced.

They stay for a while, for readers that opened the lake before and for earlier versions of the
tables. Files of the current version are never removed.
"""

from __future__ import annotations

from typing import Final

from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import TABLES, TOPICS, data_commit, topic_version
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.lake.topic_delta import TopicLog

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
    for topic in files.names(TOPICS):
        found |= _expired_of_topic(files, topic, hours)
    return found


def _expired_of_topic(files: Files, topic: str, hours: int) -> dict[str, int]:
    folder = f"{TOPICS}/{topic}"
    log = TopicLog(files.uri_for_delta(folder), topic, files.options_for_delta())
    log.read()
    if log.version < 0:
        return {}
    there = files.walk(folder)
    current = {file.path for file in log.files}
    found: dict[str, int] = {}
    for path in log.expired(hours):
        version = topic_version(path)
        if version is None or version > log.version or path in current:
            continue
        if f"{folder}/{path}" in there:
            found[f"{folder}/{path}"] = there[f"{folder}/{path}"]
    return found
