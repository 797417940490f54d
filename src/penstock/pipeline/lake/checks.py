"""Verifies the content of files by counts and order-independent digests (A1, P3, X1).

The digest of a set of rows is the XOR of a hash of each row, over every column except the payload,
whose checksum is one of the columns. It is the same for the log from the server and for the files
made of it, in any order and number of files. Payloads are read back from the files and hashed
again, so that the lake provably has the published bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.errors import LakeCorrupt
from penstock.model.checksum import checksum
from penstock.pipeline.format.error_lines import without_spark
from penstock.pipeline.lake.commits import File, Table
from penstock.pipeline.lake.data_files import FILE
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import MESSAGES, TABLES
from penstock.pipeline.lake.reader import read_files
from penstock.pipeline.lake.sessions import reading_payloads

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

B = TypeVar("B", str, int)

__all__ = [
    "HASHED",
    "Digest",
    "combined",
    "corrupt",
    "damaged",
    "digest_of",
    "examine",
    "lost",
    "row_hash",
    "wrong_payloads",
]

#: Columns that are hashed. Headers are a map, which Spark can only hash as a list of entries.
_COLUMNS: Final[dict[Table, tuple[str, ...]]] = {
    "messages": (
        "offset",
        "id",
        "topic",
        "key",
        "timestamp",
        "partition_key",
        "priority",
        "content_type",
        "deliver_at",
        "expires_at",
        "size",
        "checksum",
    ),
    "history": ("id", "queue", "seq", "at", "transition", "state", "consumer", "error"),
}
#: The columns that ``row_hash`` needs.
HASHED: Final[dict[Table, tuple[str, ...]]] = {
    "messages": (*_COLUMNS["messages"], "headers", "max_attempts"),
    "history": _COLUMNS["history"],
}
#: How many files an error names.
_NAMED: Final = 10
_LOW: Final = 2**64 - 1

#: The result of ``examine_batches`` for some rows of one file.
_EXAMINED: Final = (
    "file string, rows bigint, digest bigint, first bigint, last bigint, "
    "wrong bigint, payload_bytes bigint, largest bigint, "
    "low_topic string, high_topic string, earliest bigint, latest bigint"
)
_EXAMINED_SCHEMA: Final = pa.schema(
    [
        ("file", pa.string()),
        *(
            (name, pa.int64())
            for name in ("rows", "digest", "first", "last", "wrong", "payload_bytes", "largest")
        ),
        ("low_topic", pa.string()),
        ("high_topic", pa.string()),
        ("earliest", pa.int64()),
        ("latest", pa.int64()),
    ]
)


class Digest(Struct, frozen=True):
    """A summary of some rows."""

    rows: int = 0
    digest: str = "0"
    first: int = -1
    last: int = -1
    payload_bytes: int = 0
    largest: int = 0
    wrong: int = 0
    """Payloads whose size or checksum is wrong."""
    topics: tuple[str, str] | None = None
    """The lowest and the highest topic; None: not known."""
    times: tuple[int, int] | None = None
    """The earliest and the latest time, in milliseconds; None: not known."""

    def __add__(self, other: Digest) -> Digest:
        if not self.rows:
            return other
        if not other.rows:
            return self
        return Digest(
            self.rows + other.rows,
            f"{int(self.digest, 16) ^ int(other.digest, 16):X}",
            min(self.first, other.first),
            max(self.last, other.last),
            self.payload_bytes + other.payload_bytes,
            max(self.largest, other.largest),
            self.wrong + other.wrong,
            _both(self.topics, other.topics),
            _both(self.times, other.times),
        )

    def same(self, other: Digest) -> bool:
        """Whether both summarize the same rows, and no payload is wrong."""
        alike = (self.rows, self.digest) == (other.rows, other.digest)
        return alike and not self.wrong and not other.wrong


def _both(one: tuple[B, B] | None, other: tuple[B, B] | None) -> tuple[B, B] | None:
    """The bounds of both; None if one is not known."""
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])


def combined(files: Iterable[File]) -> Digest:
    """The digest of several files together, from the manifest."""
    return sum((_of_file(file) for file in files), Digest())


def _of_file(file: File) -> Digest:
    return Digest(file.rows, file.digest, file.first, file.last, file.payload_bytes, file.largest)


def _number(table: Table) -> Column:
    return F.col("offset" if table == MESSAGES else "id")


def row_hash(table: Table) -> Column:
    """The hash of a row; it covers the payload by its checksum."""
    names = _COLUMNS[table]
    # xxhash64 skips nulls, so rows that differ only in where a null is would collide.
    there = F.concat(*[F.when(F.col(name).isNull(), "n").otherwise("v") for name in names])
    # A max_attempts that is null must not count: digests of earlier lakes do not have the column.
    more = [F.map_entries("headers"), F.col("max_attempts")] if table == MESSAGES else []
    return F.xxhash64(there, *[F.col(name) for name in names], *more)


def digest_of(rows: DataFrame, table: Table) -> Digest:
    """The digest of rows that are not in files; payloads are not checked."""
    number = _number(table)
    size = F.col("size") if table == MESSAGES else F.lit(0)
    (found,) = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.hex(F.coalesce(F.bit_xor(row_hash(table)), F.lit(0))).alias("digest"),
        F.coalesce(F.min(number), F.lit(-1)).alias("first"),
        F.coalesce(F.max(number), F.lit(-1)).alias("last"),
        F.coalesce(F.sum(size), F.lit(0)).alias("payload_bytes"),
        F.coalesce(F.max(size), F.lit(0)).alias("largest"),
    ).collect()
    return Digest(**found.asDict())


def examine(rows: DataFrame, table: Table) -> dict[str, Digest]:
    """The digest of each file that ``rows`` is read from, by URI; hashes every payload again.

    The rows have the column ``FILE``.
    """
    columns = [
        F.col(FILE),
        row_hash(table).alias("hash"),
        _number(table).alias("number"),
        F.unix_millis("timestamp" if table == MESSAGES else "at").alias("time"),
    ]
    if table == MESSAGES:
        columns += [F.col(name) for name in ("topic", "size", "checksum", "value")]
    found: dict[str, Digest] = {}
    with without_spark():
        examined = rows.select(*columns).mapInArrow(examine_batches, _EXAMINED).collect()
    for row in examined:
        values = row.asDict()
        file = values.pop("file")
        topics = (values.pop("low_topic"), values.pop("high_topic"))
        times = (values.pop("earliest"), values.pop("latest"))
        digest = Digest(
            **{**values, "digest": f"{values['digest'] & _LOW:X}"},
            topics=None if None in topics else topics,
            times=times,
        )
        found[file] = found.get(file, Digest()) + digest
    return found


def examine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Summarize each batch, per file."""
    for batch in batches:
        places = batch.column("file").dictionary_encode()
        names = places.dictionary.to_pylist()
        # Most batches are from one file.
        parts = [batch] if len(names) == 1 else _parts(batch, places.indices, len(names))
        rows = [{"file": name, **_in_short(part)} for name, part in zip(names, parts, strict=True)]
        yield pa.RecordBatch.from_pylist(rows, schema=_EXAMINED_SCHEMA)


def _parts(batch: pa.RecordBatch, indices: pa.Array, count: int) -> Iterator[pa.RecordBatch]:
    for index in range(count):
        yield batch.filter(pc.equal(indices, index))


def _in_short(part: pa.RecordBatch) -> dict[str, object]:
    """Summarize the rows of one file; there must be at least one."""
    sizes, right = _payloads(part)
    numbers, times = part.column("number"), pc.min_max(part.column("time")).as_py()
    topics = {"min": None, "max": None}
    if "topic" in part.schema.names:
        topics = pc.min_max(part.column("topic")).as_py()
    return {
        "rows": part.num_rows,
        "digest": reduce(xor, part.column("hash").to_pylist()),
        "first": pc.min(numbers).as_py(),
        "last": pc.max(numbers).as_py(),
        "wrong": len(right) - sum(right),
        "payload_bytes": sum(sizes),
        "largest": max(sizes),
        "low_topic": topics["min"],
        "high_topic": topics["max"],
        "earliest": times["min"],
        "latest": times["max"],
    }


def _payloads(batch: pa.RecordBatch) -> tuple[Sequence[int], Sequence[bool]]:
    """The payload size of each row, and whether its size and checksum are right."""
    if "value" not in batch.schema.names:
        return [0] * batch.num_rows, [True] * batch.num_rows
    values = batch.column("value").to_pylist()
    wanted = zip(
        values, batch.column("size").to_pylist(), batch.column("checksum").to_pylist(), strict=True
    )
    right = [
        value is not None and len(value) == size and checksum(value) == sum_
        for value, size, sum_ in wanted
    ]
    return [0 if value is None else len(value) for value in values], right


def wrong_payloads(rows: DataFrame) -> DataFrame:
    """Offset and id of the rows whose payload does not match its size and checksum."""
    chosen = rows.select("offset", "id", "size", "checksum", "value")
    return chosen.mapInArrow(_wrong_rows, "offset bigint, id bigint")


def _wrong_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        _, right = _payloads(batch)
        wrong = pa.array([not one for one in right], pa.bool_())
        yield batch.select(["offset", "id"]).filter(wrong)


# -- files that are in the lake --------------------------------------------------------


def lost(there: dict[str, int], wanted: Iterable[File]) -> list[str]:
    """Files that are missing from ``there``, or have another size."""
    return [file.path for file in wanted if there.get(file.path) != file.bytes]


def damaged(spark: SparkSession, files: Files, chosen: Sequence[File]) -> list[File]:
    """The files that do not match the manifest; reads all of them completely."""
    there = {path: size for table in TABLES for path, size in files.walk(table).items()}
    bad = set(lost(there, chosen))
    for table in TABLES:
        whole = [file for file in chosen if file.table == table and file.path not in bad]
        if whole:
            bad |= _unlike(spark, files, whole, table)
    return [file for file in chosen if file.path in bad]


def _unlike(spark: SparkSession, files: Files, chosen: Sequence[File], table: Table) -> set[str]:
    with reading_payloads(spark, max(file.largest for file in chosen)):
        found = examine(read_files(spark, files, chosen, table, lenient=True, named=True), table)
    by_path = {relative(uri, table): digest for uri, digest in found.items()}
    return {
        file.path
        for file in chosen
        if not by_path.get(file.path, Digest()).same(_of_file(file))
        or by_path[file.path].payload_bytes != file.payload_bytes
    }


def relative(uri: str, folder: str) -> str:
    """The path of a file below the lake, from its URI; ``folder`` is its top-level folder."""
    # Our own paths contain nothing that is escaped, so the URI ends with the path as it is.
    return f"{folder}/{uri.rpartition(f'/{folder}/')[2]}"


def corrupt(paths: Sequence[str], what: str) -> LakeCorrupt:
    """A ``LakeCorrupt`` that names some of the files."""
    named = ", ".join(paths[:_NAMED])
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return LakeCorrupt(f"{what}: {named}{more}.", field="lake")
