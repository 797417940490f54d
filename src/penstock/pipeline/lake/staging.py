"""Staging: files are written, read back and checked before they are moved into place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.pipeline.lake.checks import Digest, combined, corrupt, examine, relative
from penstock.pipeline.lake.commits import File, Table
from penstock.pipeline.lake.data_files import read_paths, write_rows
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import MESSAGES, data_name, is_parquet, staging_folder
from penstock.pipeline.lake.schemas import ARROW_SCHEMAS, SCHEMAS
from penstock.pipeline.lake.sessions import reading_payloads, writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Staged", "stage"]

#: The sort order within a file. Each topic is together, so that readers of one skip the others.
_ORDER: Final[dict[Table, tuple[str, ...]]] = {
    "messages": ("topic", "offset"),
    "history": ("id", "queue", "seq"),
}
#: The column that the date is derived from.
_TIME: Final[dict[Table, str]] = {"messages": "timestamp", "history": "at"}


def stage(
    spark: SparkSession,
    files: Files,
    rows: DataFrame,
    table: Table,
    *,
    begun: int,
    partitions: Sequence[str],
    most: int,
    largest: int = 0,
) -> Staged:
    """Write rows of a table, at most ``most`` per file, and read them back.

    The values of the columns ``partitions`` are in the path, and ``largest`` is the size of the
    largest payload. Replaces what the run had staged before.
    """
    folder = f"{staging_folder(begun)}/{table}"
    files.remove_tree(folder)
    with writing(spark):
        dated = rows.withColumn("date", F.to_date(_TIME[table])).select(*SCHEMAS[table].names)
        ordered = dated.sortWithinPartitions("date", *_ORDER[table])
        write_rows(files, ordered, folder, partitions, most)
    with reading_payloads(spark, largest):
        # Without Spark's own files: success marker, checksums.
        sizes = {path: size for path, size in files.walk(folder).items() if is_parquet(path)}
        # With an explicit schema, because a topic of digits would be read as a number.
        again = read_paths(spark, files, sizes, folder, ARROW_SCHEMAS[table], largest=largest)
        found = {relative(uri, folder): digest for uri, digest in examine(again, table).items()}
    staged: list[File] = []
    for path, size in sizes.items():
        if path not in found:
            continue
        of = found[path]
        staged.append(
            File(
                path,
                table,
                of.rows,
                size,
                of.first,
                of.last,
                of.digest,
                of.payload_bytes if table == MESSAGES else 0,
                of.largest,
                of.topics,
                of.times,
            )
        )
    wrong = [path for path, digest in found.items() if digest.wrong]
    if wrong:
        raise corrupt(wrong, "Payloads are not what was published in")
    return Staged(files, folder, table, staged)


class Staged:
    """Files that were written and read back."""

    def __init__(self, files: Files, folder: str, table: Table, staged: Sequence[File]) -> None:
        self._files = files
        self._folder = folder
        self._table = table
        self._staged = staged

    @property
    def digest(self) -> Digest:
        """The digest of all rows."""
        return combined(self._staged)

    def put_into_place(self, start: int, end: int, commit: int) -> list[File]:
        """Move the files into their table, named by range and commit."""
        moved = [
            replace(file, path=self._place(file, _name(file, start, end, commit, number)))
            for number, file in enumerate(self._staged)
        ]
        for before, after in zip(self._staged, moved, strict=True):
            self._files.move(before.path, after.path)
        self._files.remove_tree(self._folder)
        return moved

    def _place(self, file: File, name: str) -> str:
        partition = file.path.removeprefix(f"{self._folder}/").rpartition("/")[0]
        return f"{self._table}/{partition}/{name}"


def _name(file: File, start: int, end: int, commit: int, number: int) -> str:
    return data_name(start, end, commit, number, file.digest, file.payload_bytes)
