"""Reads and writes the data files of a lake: by Spark itself, or in its Python processes.

Spark reads Parquet faster than Python does, but only where Java has a client for the file system.
On S3 every task reads or writes its files through pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.pipeline.format.error_lines import one_line, without_spark
from penstock.pipeline.format.schemas import spark_schema
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.parquet_store import ParquetStore, explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FILE", "explaining", "read_paths", "split", "write_rows"]

#: The column of ``read_paths`` with the URI of a row's file, which ends with its path.
FILE: Final = "file"
#: Rows and bytes of a row group.
_GROUP_ROWS: Final = 100_000
_GROUP_BYTES: Final = 32 * 1024 * 1024
#: Bytes of files that one task reads.
_TASK_BYTES: Final = 128 * 1024 * 1024
_BATCH_BYTES: Final = 64 * 1024 * 1024
_BATCH_ROWS: Final = 4_096


# -- writing ---------------------------------------------------------------------------


def write_rows(
    files: Files, rows: DataFrame, folder: str, partitions: Sequence[str], most: int
) -> None:
    """Write rows, sorted by ``partitions`` first, at most ``most`` per file.

    Attempts of a task that Spark repeats may leave files on S3: the caller takes the rows that it
    finds, and compares them with those that it wanted.
    """
    if not files.needs_store:
        writer = rows.write.partitionBy(*partitions).mode("append")
        writer.options(compression="zstd", maxRecordsPerFile=str(max(most, 1))).parquet(
            files.uri(folder)
        )
        return
    assert files.store is not None
    write = _Writing(files.store, folder, tuple(partitions), max(most, 1))
    with without_spark():
        written = {row["path"] for row in rows.mapInArrow(write, "path string").collect()}
    # Files of attempts that failed or were too late.
    files.remove([path for path in files.walk(folder) if path not in written])


class _Writing:
    """Writes the batches of one task, and yields the paths of its files."""

    def __init__(
        self, store: ParquetStore, folder: str, partitions: tuple[str, ...], most: int
    ) -> None:
        self._store = store
        self._folder = folder
        self._partitions = partitions
        self._most = most

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        paths = list(explaining(self._store, self._write)(batches))
        yield pa.RecordBatch.from_pydict({"path": pa.array(paths, pa.string())})

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
        number, place = 0, ""
        context = TaskContext.get()
        assert context is not None, "this runs in a task"
        task = context.taskAttemptId()
        file: _File | None = None
        for batch in batches:
            for values, part in split(batch, self._partitions):
                folder = self._place(values)
                for piece in _pieces(part, self._most):
                    if file is None or folder != place or file.rows + piece.num_rows > self._most:
                        if file is not None:
                            file.close()
                        path = f"{folder}/{task}-{number}.parquet"
                        file, place, number = _File(self._store, path, piece), folder, number + 1
                        yield path
                    file.add(piece)
        if file is not None:
            file.close()

    def _place(self, values: Sequence[object]) -> str:
        pairs = zip(self._partitions, values, strict=True)
        folders = [self._folder, *(f"{name}={value}" for name, value in pairs)]
        return "/".join(folders).strip("/")


class _File:
    """One file that is being written."""

    def __init__(self, store: ParquetStore, path: str, first: pa.RecordBatch) -> None:
        self._stream = store.create(path)
        self._writer = pq.ParquetWriter(self._stream, first.schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.rows += batch.num_rows
        rows = sum(one.num_rows for one in self._waiting)
        if rows >= _GROUP_ROWS or sum(one.nbytes for one in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting = []

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._stream.close()


def split(
    batch: pa.RecordBatch, partitions: Sequence[str]
) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """Runs of rows with the same values of these columns, without the columns."""
    if not batch.num_rows:
        return
    ends = {0, batch.num_rows}
    for name in partitions:
        runs = pc.run_end_encode(batch.column(name))
        ends.update(runs.run_ends.to_pylist())
    rest = batch.drop_columns(list(partitions))
    for start, end in pairwise(sorted(ends)):
        values = tuple(batch.column(name)[start].as_py() for name in partitions)
        yield values, rest.slice(start, end - start)


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, most):
        yield batch.slice(start, most)


# -- reading ---------------------------------------------------------------------------


def read_paths(
    spark: SparkSession,
    files: Files,
    sizes: dict[str, int],
    base: str,
    schema: pa.Schema,
    *,
    lenient: bool = False,
    largest: int = 0,
) -> DataFrame:
    """The rows of files, by path and size, with these columns and the column ``FILE``, a URI.

    The columns in their paths below ``base`` are among them. ``lenient`` skips what is damaged or
    not there, and ``largest`` is the size of the largest value of a row.
    """
    wanted = pa.schema([*schema, pa.field(FILE, pa.string())])
    if not sizes:
        return spark.createDataFrame([], spark_schema(wanted))
    if not files.needs_store:
        reader = spark.read.schema(spark_schema(schema)).options(basePath=files.uri(base))
        if lenient:
            reader = reader.options(ignoreCorruptFiles="true", ignoreMissingFiles="true")
        rows = reader.parquet(*[files.uri(path) for path in sizes])
        return rows.withColumn(FILE, F.col("_metadata.file_path"))
    assert files.store is not None
    tasks = max(spark.sparkContext.defaultParallelism, -(-sum(sizes.values()) // _TASK_BYTES))
    paths = spark.range(0, len(sizes), numPartitions=min(len(sizes), tasks))
    read = _Reading(files.store, list(sizes), wanted, lenient=lenient, largest=largest)
    return paths.mapInArrow(read, spark_schema(wanted))


class _Reading:
    """Reads the files with these numbers."""

    def __init__(
        self,
        store: ParquetStore,
        paths: Sequence[str],
        schema: pa.Schema,
        *,
        lenient: bool,
        largest: int,
    ) -> None:
        self._store = store
        self._paths = paths
        self._schema = schema
        self._lenient = lenient
        self._rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(largest, 1)))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from explaining(self._store, self._file)(self._paths[number])

    def _file(self, path: str) -> Iterator[pa.RecordBatch]:
        try:
            with self._store.open(path) as stream:
                file = pq.ParquetFile(stream)
                there = set(file.schema_arrow.names)
                names = [field.name for field in self._schema if field.name in there]
                for batch in file.iter_batches(self._rows, columns=names):
                    yield self._shaped(batch, path)
        except (OSError, pa.ArrowException) as error:
            # A store that cannot be reached is no damage.
            if not self._lenient or "AWS Error" in str(error):
                raise

    def _shaped(self, batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
        """All columns of the schema: those in the file, in its path, and null ones."""
        pairs = (part.partition("=") for part in path.split("/")[:-1])
        fixed: dict[str, str] = {FILE: f"/{path}", **{name: value for name, _, value in pairs}}
        columns: list[Any] = []
        for field in self._schema:
            if field.name in batch.schema.names:
                columns.append(batch.column(field.name).cast(field.type))
            elif field.name in fixed:
                value = pa.scalar(fixed[field.name]).cast(field.type)
                columns.append(pa.repeat(value, batch.num_rows))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def explaining(
    store: ParquetStore, work: Callable[[Any], Iterator[Any]]
) -> Callable[[Any], Iterator[Any]]:
    """Let an error of the object store end the task with one line."""

    @one_line
    def call(given: Any) -> Iterator[Any]:
        try:
            yield from work(given)
        except OSError as error:
            if store.s3 is None or "AWS Error" not in str(error):
                raise
            raise explained(store.s3, error) from error

    return call
