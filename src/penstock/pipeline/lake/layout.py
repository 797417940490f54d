"""Where things are in a lake.

::

    messages/date=2026-11-15/topic=orders/100-200-7-0.parquet
    history/date=2026-11-15/100-200-8-0.parquet
    _penstock/manifest/00000000000000000007.json     what is in the lake: one commit a file
    _penstock/manifest/…64.checkpoint.json           all commits up to that one, added up
    _penstock/staging/6/…                            what a run has not moved into place yet

A data file is named after the offsets that it is about (from, to below), the commit that brought
it in, and a number. The folders of the tables have nothing in them but Parquet, so that anything
that reads Parquet reads them; folders that begin with an underscore are passed by.
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
    "checkpoint_name",
    "checkpoint_number",
    "commit_name",
    "commit_number",
    "data_commit",
    "data_name",
    "is_data",
    "staging_folder",
]

MESSAGES: Final = "messages"
HISTORY: Final = "history"
TABLES: Final = (MESSAGES, HISTORY)
MANIFEST: Final = "_penstock/manifest"
STAGING: Final = "_penstock/staging"

#: Twenty digits: names in the order of the text are in the order of the commits.
_DIGITS: Final = 20
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.json")
_DATA: Final = re.compile(r"\d+-\d+-(\d+)-\d+\.parquet")


def commit_name(number: int) -> str:
    """The path of a commit, below the lake."""
    return f"{MANIFEST}/{number:0{_DIGITS}d}.json"


def commit_number(name: str) -> int | None:
    """The number of a commit by the name of its file; None: it is something else."""
    return _number(_COMMIT, name)


def checkpoint_name(number: int) -> str:
    """The path of a checkpoint, below the lake."""
    return f"{MANIFEST}/{number:0{_DIGITS}d}.checkpoint.json"


def checkpoint_number(name: str) -> int | None:
    """The last commit of a checkpoint by the name of its file; None: it is something else."""
    return _number(_CHECKPOINT, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return None if found is None else int(found[1])


def data_name(start: int, end: int, commit: int, number: int) -> str:
    """The name of a data file, which no other run and no other commit gives."""
    return f"{start}-{end}-{commit}-{number}.parquet"


def is_data(path: str) -> bool:
    """Whether a path below a table is named as archiving runs name their files.

    Whatever else somebody has put there, a Delta table's log say, is not ours to remove.
    """
    return data_commit(path) is not None


def data_commit(path: str) -> int | None:
    """The number of the commit that a data file was made for; None: it is something else."""
    folder, _, name = path.rpartition("/")
    hidden = any(part.startswith(("_", ".")) for part in folder.split("/"))
    return None if hidden else _number(_DATA, name)


def staging_folder(begun: int) -> str:
    """Where the run that began with this commit writes before it moves."""
    return f"{STAGING}/{begun}"
