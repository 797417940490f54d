"""``export``: writes messages of the lake as plain Parquet, for readers that know no Delta."""

from __future__ import annotations

from penstock.errors import BadInput
from penstock.filters import parse
from penstock.filters.to_spark import matches
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.lake.files import open_files
from penstock.pipeline.lake.layout import MESSAGES
from penstock.pipeline.lake.ownership import require_lake
from penstock.pipeline.lake.reader import read_lake
from penstock.pipeline.lake.sessions import writing

__all__ = ["export"]


def export(context: JobContext, *, output: str, where: str | None = None) -> Summary:
    """Write the messages for which ``where`` is TRUE to a folder that does not exist yet.

    The folder has one folder per date and topic. It has no manifest: another export writes to
    another folder.
    """
    chosen = None if where is None else parse(where)
    files = open_files(context.lake, lambda: context.spark)
    require_lake(context, files)
    # The file systems of an output and of a lake are the same ones.
    target = open_files(output, lambda: context.spark)
    if target.names(""):
        raise BadInput(f"{output} has files already; export to a new folder.", field="output")
    rows = read_lake(context.spark, files, MESSAGES)
    if chosen is not None:
        rows = rows.where(matches(chosen))
    with writing(context.spark):
        partitioned = rows.sortWithinPartitions("date", "topic", "offset").write.partitionBy(
            "date", "topic"
        )
        partitioned.option("compression", "zstd").mode("append").parquet(target.uri(""))
    written = context.spark.read.schema("offset bigint").parquet(target.uri(""))
    return {"messages": written.count(), "output": output}
