"""The layout of a lake.

::

    messages/_delta_log/…                            the commits of the table
    messages/date=2026-11-15/100-200-7-0-9DD5EAD539994318-88780.parquet
    history/_delta_log/…
    history/date=2026-11-15/100-200-8-0-376460EF1F6EEC28-0.parquet
    topics/orders/…                                  a table of typed payloads (topic_tables)
    _penstock/staging/6/…                            files that a run has not moved into place yet
    _penstock/manifest/…                             the manifest of an earlier version, if any

A data file is named after its range of offsets (from, to below), the commit that it was made for, a
number, the digest of its rows and the bytes of its payloads. Names of earlier versions end after
the number, and their messages are in folders by topic too.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "HISTORY",
    "MANIFEST",
    "MESSAGES",
    "STAGING",
    "TABLES",
    "TOPICS",
    "checkpoint_name",
    "checkpoint_number",
    "commit_name",
    "commit_number",
    "data_commit",
    "data_digest",
    "data_name",
    "is_data",
    "is_parquet",
    "staging_folder",
    "topic_version",
]

MESSAGES: Final = "messages"
HISTORY: Final = "history"
TABLES: Final = (MESSAGES, HISTORY)
MANIFEST: Final = "_penstock/manifest"
STAGING: Final = "_penstock/staging"
TOPICS: Final = "topics"

#: Twenty digits: sorting the names sorts the commits.
_DIGITS: Final = 20
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.json")
_TOPIC_DATA: Final = re.compile(r"(\d+)-\d+-(?:\d+|merged)\.parquet")
_DATA: Final = re.compile(r"\d+-\d+-(\d+)-\d+(?:-([0-9A-F]+)-(\d+))?\.parquet")


def commit_name(number: int) -> str:
    """The path of a commit, below the lake."""
    return f"{MANIFEST}/{number:0{_DIGITS}d}.json"


def commit_number(name: str) -> int | None:
    """The number of a commit from the name of its file; None if it is not a commit."""
    return _number(_COMMIT, name)


def checkpoint_name(number: int) -> str:
    """The path of a checkpoint, below the lake."""
    return f"{MANIFEST}/{number:0{_DIGITS}d}.checkpoint.json"


def checkpoint_number(name: str) -> int | None:
    """The last commit of a checkpoint from the name of its file; None if it is not a checkpoint."""
    return _number(_CHECKPOINT, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return None if found is None else int(found[1])


def data_name(
    start: int, end: int, commit: int, number: int, digest: str, payload_bytes: int
) -> str:
    """The name of a data file, unique across runs and commits."""
    return f"{start}-{end}-{commit}-{number}-{digest}-{payload_bytes}.parquet"


def data_digest(path: str) -> tuple[str, int] | None:
    """The digest and the payload bytes in the name of a data file; None if it has neither."""
    found = _DATA.fullmatch(path.rpartition("/")[2])
    return None if found is None or found[2] is None else (found[2], int(found[3]))


def is_data(path: str) -> bool:
    """Whether a path below a table has the name of a file that archiving runs create.

    Other files there, such as the log of a Delta table, must not be removed.
    """
    return data_commit(path) is not None


def is_parquet(path: str) -> bool:
    """Whether a path is of a Parquet file that readers see."""
    name = path.rpartition("/")[2]
    return name.endswith(".parquet") and not name.startswith(("_", "."))


def data_commit(path: str) -> int | None:
    """The number of the commit that a data file was made for; None for any other file."""
    folder, _, name = path.rpartition("/")
    hidden = any(part.startswith(("_", ".")) for part in folder.split("/"))
    return None if hidden else _number(_DATA, name)


def topic_version(path: str) -> int | None:
    """The version of a topic table that a file was made for; None for any other file."""
    return _number(_TOPIC_DATA, path.rpartition("/")[2])


def staging_folder(begun: int) -> str:
    """The staging folder of the run that began with this commit."""
    return f"{STAGING}/{begun}"
