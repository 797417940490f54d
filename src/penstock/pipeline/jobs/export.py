"""``export``: writes messages of the lake as plain Parquet, for readers that know no Delta."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.errors import BadInput
from penstock.filters import parse
from penstock.filters.to_spark import matches
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.lake.data_files import read_paths, write_rows
from penstock.pipeline.lake.files import open_files
from penstock.pipeline.lake.layout import MESSAGES, is_parquet
from penstock.pipeline.lake.ownership import require_lake
from penstock.pipeline.lake.reader import read_lake
from penstock.pipeline.lake.s3_location import public_name
from penstock.pipeline.lake.sessions import writing

__all__ = ["export"]

#: Rows per file.
_MOST: Final = 5_000_000
_COUNTED: Final = pa.schema([("offset", pa.int64())])


def export(context: JobContext, *, output: str, where: str | None = None) -> Summary:
    """Write the messages for which ``where`` is TRUE to a folder that does not exist yet.

    The folder has one folder per date and topic. It has no manifest: another export writes to
    another folder.
    """
    chosen = None if where is None else parse(where)
    files = context.lake_files()
    require_lake(context, files)
    # The file systems of an output and of a lake are the same ones.
    target = open_files(output, lambda: context.spark)
    if target.names(""):
        raise BadInput(
            f"{public_name(output)} has files already; export to a new folder.", field="output"
        )
    rows = read_lake(context.spark, files, MESSAGES)
    if chosen is not None:
        rows = rows.where(matches(chosen))
    with writing(context.spark):
        ordered = rows.sortWithinPartitions("date", "topic", "offset")
        write_rows(target, ordered, "", ("date", "topic"), _MOST)
    sizes = {path: size for path, size in target.walk("").items() if is_parquet(path)}
    written = read_paths(context.spark, target, sizes, "", _COUNTED)
    return {"messages": written.count(), "output": public_name(output)}
