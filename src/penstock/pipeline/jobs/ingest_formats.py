"""The formats that ``ingest`` reads: which one a file has, and its rows as a DataFrame.

A row of a CSV, Parquet or ORC file becomes one JSON object. A line of a text file is a payload. A
JSON document is a payload too, exactly as it is written: Spark would infer one type per field, turn
``1`` into ``"1"`` where another row has a text, and drop nulls.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.errors import BadInput
from penstock.pipeline.jobs.json_rows import is_json, members_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["FORMATS", "format_of", "read_json", "read_rows"]

FORMATS: Final = ("parquet", "json", "csv", "text", "orc")
_ENDINGS: Final[Mapping[str, str]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".txt": "text",
    ".log": "text",
    ".orc": "orc",
}
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate")
#: The text of a CSV row that does not have the columns of the header.
_UNREADABLE: Final = "_penstock_unreadable"
_FILE: Final = "_metadata.file_path"
#: The lines that decide how JSON is read.
_SAMPLE: Final = 100
#: Fields of a message, and the type that their column is cast to.
_CASTS: Final[Mapping[str, str]] = {
    "partition_key": "string",
    "replace_key": "string",
    "priority": "int",
}


def format_of(spark: SparkSession, path: str) -> str:
    """The format of the files at a path, by their endings; raises ``BadInput`` if unclear."""
    named = _ending(path)
    if named is not None:
        return named
    try:
        files = spark.read.format("binaryFile").load(path).select("path").take(1_000)
    except AnalysisException as error:
        raise _unreadable(path, error) from error
    found = {_ending(row["path"]) for row in files}
    if len(found) == 1 and (only := found.pop()) is not None:
        return only
    named_formats = ", ".join(sorted(name or "unknown" for name in found))
    why = f"files of several formats ({named_formats})" if found else "no file of a known ending"
    raise BadInput(
        f"{path} has {why}: add --format with one of {', '.join(FORMATS)}.", field="format"
    )


def _ending(path: str) -> str | None:
    name = PurePosixPath(path)
    while name.suffix.lower() in _COMPRESSED:
        name = name.with_suffix("")
    return _ENDINGS.get(name.suffix.lower())


def read_json(spark: SparkSession, path: str) -> tuple[DataFrame, set[str]]:
    """The texts and files, and the members of the first objects.

    A text is a line, or a whole file if most lines are no JSON by themselves.
    """
    try:
        texts = spark.read.text(path)
        head = _head(texts, _SAMPLE)
        if sum(map(is_json, head)) * 2 < len(head):
            texts = spark.read.text(path, wholetext=True)
            head = _head(texts, 1)
    except AnalysisException as error:
        raise _unreadable(path, error) from error
    members = set().union(*map(members_of, head))
    rows = texts.select(F.col("value").cast("binary").alias("text"), F.col(_FILE).alias("file"))
    return rows, members


def _head(texts: DataFrame, count: int) -> list[bytes]:
    found = texts.where(F.length(F.trim("value")) > 0).select(F.col("value").cast("binary"))
    return [bytes(row[0]) for row in found.take(count)]


def read_rows(
    spark: SparkSession, path: str, format: str, value: str | None, columns: Mapping[str, str]
) -> DataFrame:
    """The rows of the other formats as messages, with ``rejected``: the text of a bad row."""
    try:
        rows = _load(spark, path, format)
    except AnalysisException as error:
        raise _unreadable(path, error) from error
    names = [name for name in rows.columns if name != _UNREADABLE]
    if format == "text" and value is None:
        value = "value"
    missing = sorted({value, *columns.values()} - {None, *names}, key=str)
    if missing:
        raise BadInput(
            f"{path} has no column {missing[0]!r}; it has {', '.join(names)}.", field="columns"
        )
    payload: Column
    if value is None:
        every = F.struct(*[F.col(f"`{name}`") for name in names])
        payload = F.to_json(every, {"ignoreNullFields": "false"}).cast("binary")
        kind = F.lit("application/json")
    else:
        payload = F.coalesce(F.col(f"`{value}`").cast("binary"), F.lit(b""))
        kind = F.lit(None)
    unreadable_text = F.col(_UNREADABLE) if _UNREADABLE in rows.columns else F.lit(None)
    return rows.select(
        payload.alias("value"),
        kind.cast("string").alias("content_type"),
        *[_field(name, column) for name, column in columns.items()],
        unreadable_text.cast("binary").alias("text"),
        F.col(_FILE).alias("file"),
    )


def _load(spark: SparkSession, path: str, format: str) -> DataFrame:
    if format != "csv":
        return spark.read.format(format).load(path)
    reader = spark.read.option("header", "true")
    schema = reader.csv(path).schema.add(_UNREADABLE, "string")
    return reader.option("columnNameOfCorruptRecord", _UNREADABLE).schema(schema).csv(path)


def _field(name: str, column: str) -> Column:
    found = F.col(f"`{column}`")
    return (found.cast(_CASTS[name]) if name in _CASTS else found).alias(name)


def _unreadable(path: str, error: AnalysisException) -> BadInput:
    """The error for files that Spark cannot read."""
    text = (error.getMessage() or str(error)).strip().splitlines()[0]
    return BadInput(f"{path} cannot be read: {text}", field="path")
