"""Recognizes, by their names, files that killed runs left and files of lost commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.pipeline.lake.checks import corrupt
from penstock.pipeline.lake.commits import Lake, Table
from penstock.pipeline.lake.layout import data_commit, is_data

__all__ = ["check_commits", "unfinished"]


def unfinished(
    lake: Lake, begins: Mapping[Table, Sequence[int]], paths: Iterable[str]
) -> list[str]:
    """Of these paths, the files that no commit of the lake added or ever will.

    A file is named after the commit that it was made for. ``begins`` has the numbers of the last
    commits by which runs took over each table, which add no files: a file with such a number was
    made for a commit that lost its number to that one. Other files that the tables do not have
    belong to earlier versions of the lake, and are left to ``vacuum``.
    """
    return [
        path
        for path in paths
        for table, numbers in begins.items()
        if path.startswith(f"{table}/") and data_commit(path) in numbers and path not in lake.files
    ]


def check_commits(name: str, lake: Lake, paths: Sequence[str]) -> None:
    """Refuse a lake with files of commits that its manifest has lost.

    A killed run leaves only files of the next commit, so files of a later one were committed. They
    may be the only copies and must not be removed.
    """
    lost = [
        path
        for path in paths
        if (data_commit(path) or 0) > lake.number_of(path.partition("/")[0]) + 1
    ]
    if not lake.number:
        # Without a manifest no run has begun, so every data file belongs to a lost commit.
        lost = [path for path in paths if is_data(path)]
    if lost:
        table = lost[0].partition("/")[0]
        raise corrupt(
            lost,
            f"The manifest ends with commit {lake.number_of(table)} of {table}, and there are "
            f"files of later ones. Restore {name}/{table}/_delta_log first; nothing was removed. "
            "The files",
        )
