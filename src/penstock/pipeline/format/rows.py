"""Rows of a DataFrame as messages: the allowed columns, and their conversion.

The columns are checked on the driver before anything runs; tasks then convert record batches to
messages column by column.

Columns mean what they mean to Spark's Kafka sink. So ``key`` is the partition key: rows with the
same key stay in order and none replaces another. ``replace_key`` is the key that replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, product, repeat
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql.types import StructField, StructType

from penstock.errors import BadInput
from penstock.model.limits import DEFAULT_PRIORITY
from penstock.model.message import NO_HEADERS, HeaderValue, NewMessage
from penstock.pipeline.format.chunks import Kind
from penstock.pipeline.format.kafka_shapes import header_rows, is_kafka_shaped, to_texts
from penstock.pipeline.format.table_options import OF_SERVER, is_whole_row

__all__ = ["Columns", "Group", "check_columns", "groups_of"]

_Headers: TypeAlias = dict[str, HeaderValue]
#: Rows that are published together: a topic and a kind; None: rows with an idempotency id.
Group: TypeAlias = tuple[str, Kind | None]

_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_TIMES: Final = frozenset({"timestamp", "bigint"})
_TEXT: Final = frozenset({"string"})
_BYTES: Final = frozenset({"string", "binary"})
_TYPED_HEADERS: Final = "map<string,struct<s:string,i:bigint,d:double,b:boolean>>"
_KAFKA_HEADERS: Final = "array<struct<key:string,value:binary>>"
#: The allowed types per column.
_TYPES: Final[dict[str, frozenset[str]]] = {
    "value": _BYTES,
    "payload": _BYTES,
    "topic": _TEXT,
    "key": _BYTES,
    "partition_key": _BYTES,
    "replace_key": _BYTES,
    "headers": frozenset({"map<string,string>", _TYPED_HEADERS, _KAFKA_HEADERS, "string"}),
    "priority": _INTEGERS,
    "content_type": _TEXT,
    "deliver_at": _TIMES,
    "expires_at": _TIMES,
    "id": _TEXT,
    "max_attempts": _INTEGERS,
}
#: The columns that decide the group of a row.
_SORTING: Final = frozenset({"topic", "id", "replace_key", "deliver_at", "expires_at"})
_KINDS: Final = {flags: Kind(*flags) for flags in product((False, True), repeat=3)}
_PLAIN: Final = Kind()
_decode_headers: Final = msgspec.json.Decoder(dict[str, HeaderValue]).decode


class Columns(Struct, frozen=True):
    """The validated columns of a write."""

    names: frozenset[str]
    payload: str
    topic: str | None
    """The topic of rows without one."""
    unset: frozenset[str] = frozenset()
    """Columns of an INSERT that only the server sets; they have to be NULL."""

    @property
    def has_topics(self) -> bool:
        """Whether rows name their topics."""
        return "topic" in self.names


def check_columns(schema: StructType, topic: str | None) -> Columns:
    """Check that messages can be made of the columns; raises ``BadInput`` if not."""
    is_insert = is_whole_row(schema)
    unset = OF_SERVER if is_insert else frozenset()
    fields = [field for field in schema.fields if field.name not in unset]
    names = [field.name for field in fields]
    for field in fields:
        _check_column(field, names)
    payload = [name for name in ("value", "payload") if name in names]
    if len(payload) != 1:
        raise BadInput("There has to be one column called value or payload.", field="value")
    if "key" in names and "partition_key" in names and not is_insert:
        raise BadInput(
            "The columns key and partition_key are the same: the partition key, as in Kafka. Leave "
            "one out. If key was meant to replace waiting messages, rename it to replace_key.",
            field="key",
        )
    if topic is None and "topic" not in names:
        raise BadInput("There is no column topic: set the option topic.", field="topic")
    return Columns(frozenset(names), payload[0], topic, unset)


def _check_column(field: StructField, names: Sequence[str]) -> None:
    allowed = _TYPES.get(field.name)
    if allowed is None:
        raise BadInput(
            f"A message has no {field.name!r}: leave the column out, or make it a header. "
            f"Columns are {', '.join(_TYPES)}.",
            field=field.name,
        )
    # A collation does not affect the value.
    kind = field.dataType.simpleString().partition(" collate")[0]
    if kind not in allowed:
        raise BadInput(
            f"The column {field.name} is {kind}; it has to be {' or '.join(sorted(allowed))}.",
            field=field.name,
        )
    if names.count(field.name) > 1:
        raise BadInput(f"The column {field.name} occurs twice.", field=field.name)


def groups_of(batch: pa.RecordBatch, columns: Columns) -> dict[Group, list[NewMessage]]:
    """The rows as messages, by group."""
    messages = _messages(batch, columns)
    names = columns.names
    if names.isdisjoint(_SORTING):
        assert columns.topic is not None  # Checked with the columns.
        return {(columns.topic, _PLAIN): messages}
    groups: dict[Group, list[NewMessage]] = {}
    for topic, message in zip(_topics(batch, columns), messages, strict=True):
        kind = None
        if message.id is None:
            kind = _KINDS[
                message.key is not None,
                message.deliver_at is not None,
                message.expires_at is not None,
            ]
        groups.setdefault((topic, kind), []).append(message)
    return groups


def _messages(batch: pa.RecordBatch, columns: Columns) -> list[NewMessage]:
    names, rows = columns.names, batch.num_rows
    for name in sorted(columns.unset):
        if batch.column(name).null_count < rows:
            raise BadInput(f"The server sets {name}: leave the column out.", field=name)
    payloads = batch.column(columns.payload).cast(pa.binary()).to_pylist()
    if None in payloads:
        raise BadInput("A row has no payload. Use an empty one if that is intended.", field="value")
    if names <= {columns.payload, "topic"}:
        return list(map(NewMessage, payloads))

    def given(name: str) -> Iterable[Any]:
        return batch.column(name).to_pylist() if name in names else repeat(None, rows)

    def key(name: str) -> Iterable[str | None]:
        return to_texts(batch.column(name)).to_pylist() if name in names else repeat(None, rows)

    def partition_key() -> Iterable[str | None]:
        if not columns.unset:
            return key("key" if "key" in names else "partition_key")
        return _same(key("key"), key("partition_key"))

    fields: list[Iterable[Any]] = [
        payloads,
        _headers(batch.column("headers")) if "headers" in names else repeat(NO_HEADERS),
        given("id"),
        key("replace_key"),
        partition_key(),
        _priorities(given("priority")),
        given("content_type"),
        _times(batch, "deliver_at", names),
        _times(batch, "expires_at", names),
    ]
    if "max_attempts" in names:
        # After delay_ms, ttl_ms and auto_create.
        fields += [repeat(None), repeat(None), repeat(True), given("max_attempts")]
    return list(map(NewMessage, *fields))


def _same(keys: Iterable[str | None], others: Iterable[str | None]) -> Iterable[str | None]:
    """The partition keys of an INSERT, whose table has them under both names."""
    for key, other in zip(keys, others, strict=True):
        if key is not None and other is not None and key != other:
            raise BadInput(
                "key and partition_key are the same: set one of them. A key that replaces is "
                "replace_key.",
                field="key",
            )
        yield other if key is None else key


def _topics(batch: pa.RecordBatch, columns: Columns) -> Sequence[str]:
    usual = columns.topic
    if not columns.has_topics:
        assert usual is not None  # Checked with the columns.
        return [usual] * batch.num_rows
    column = batch.column("topic")
    if column.null_count:
        if usual is None:
            raise BadInput("A row has no topic: fill it in, or set the option.", field="topic")
        column = column.fill_null(usual)
    topics: list[str] = column.to_pylist()
    return topics


def _priorities(given: Iterable[int | None]) -> Iterable[int]:
    return (DEFAULT_PRIORITY if priority is None else priority for priority in given)


def _times(batch: pa.RecordBatch, name: str, names: frozenset[str]) -> Iterable[int | None]:
    """Epoch milliseconds."""
    if name not in names:
        return repeat(None, batch.num_rows)
    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        # Truncated, not rounded: a message must not be delivered a fraction of a ms later.
        column = pc.cast(column, pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    times: list[int | None] = column.to_pylist()
    return times


def _headers(column: pa.Array) -> Sequence[_Headers]:
    """Headers from a map of text or of typed values, from Kafka's list, or from a JSON object.

    A name with a null value is not a header.
    """
    if is_kafka_shaped(column.type):
        return header_rows(column)
    if not pa.types.is_map(column.type):
        try:
            return [
                NO_HEADERS if text is None else _decode_headers(text) for text in column.to_pylist()
            ]
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadInput(f"headers cannot be read: {error}.", field="headers") from error
    items = column.items
    values = _typed(items) if pa.types.is_struct(items.type) else items.to_pylist()
    names = column.keys.to_pylist()
    offsets = column.offsets.to_pylist()
    rows = [
        {
            name: value
            for name, value in zip(names[start:end], values[start:end], strict=True)
            if value is not None
        }
        for start, end in pairwise(offsets)
    ]
    if column.null_count:
        return [
            row if there else NO_HEADERS
            for row, there in zip(rows, column.is_valid().to_pylist(), strict=True)
        ]
    return rows


def _typed(items: pa.StructArray) -> list[HeaderValue | None]:
    """The single value of each struct; None if it has none."""
    # flatten() propagates the nulls of the structs to their fields.
    parts = [part for part in items.flatten() if part.null_count < len(part)]
    if not parts:
        return [None] * len(items)
    if len(parts) == 1:
        only: list[HeaderValue | None] = parts[0].to_pylist()
        return only
    counts = pc.cast(parts[0].is_valid(), pa.int8())
    for part in parts[1:]:
        counts = pc.add(counts, pc.cast(part.is_valid(), pa.int8()))
    if pc.max(counts).as_py() > 1:
        raise BadInput("A header has more than one value.", field="headers")
    return [
        next((value for value in row if value is not None), None)
        for row in zip(*(part.to_pylist() for part in parts), strict=True)
    ]
