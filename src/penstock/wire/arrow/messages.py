"""Messages to publish, from an Arrow IPC stream that is bounded before decompression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadInput, TooLarge
from penstock.filters.to_arrow import METADATA_SCHEMA
from penstock.model.limits import DEFAULT_PRIORITY, MAX_BATCH, MAX_HEADERS, MAX_HEADERS_BYTES
from penstock.model.message import NO_HEADERS, HeaderValue, NewMessage
from penstock.wire.arrow.sizes import declared_bytes

__all__ = ["declared_size", "open_messages", "read_messages"]

_TEXT: Final = ("id", "key", "partition_key", "content_type")
_NUMBERS: Final = ("priority", "deliver_at", "expires_at", "delay_ms", "ttl_ms", "max_attempts")
_COLUMNS: Final = frozenset({"payload", "headers", *_TEXT, *_NUMBERS})
_HEADERS: Final = METADATA_SCHEMA.field("headers").type
_json_headers: Final = msgspec.json.Decoder(dict[str, HeaderValue])
#: Rows, and approximate bytes, that are converted to messages per slice.
_SLICE_ROWS: Final = 100
_SLICE_BYTES: Final = 256 * 1024
#: Headers as JSON text, which may take six bytes per byte.
_JSON_HEADERS_BYTES: Final = 8 * MAX_HEADERS_BYTES


def declared_size(body: bytes, size: int) -> int:
    """The size of a batch after decompression; ``TooLarge`` if that is over ``size``."""
    return declared_bytes(body, rows=MAX_BATCH, size=size)


def open_messages(body: bytes, size: int) -> pa.Table:
    """The columns of an Arrow IPC stream whose ``declared_size`` is within ``size``.

    May take long and needs no event loop: call it in a thread. Raises ``BadInput``.
    """
    try:
        with pa.ipc.open_stream(body) as reader:
            _check_names(reader.schema.names)
            table = pa.Table.from_batches(list(_batches(reader)), reader.schema)
        return _plain(table, size)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"The Arrow stream cannot be read: {error}.", field="body") from error


def read_messages(table: pa.Table) -> Iterator[list[NewMessage]]:
    """The messages, in slices of a few milliseconds."""
    rows = max(table.num_rows, 1)
    step = max(1, min(_SLICE_ROWS, rows * _SLICE_BYTES // max(table.nbytes, 1)))
    for begin in range(0, table.num_rows, step):
        yield _messages(table.slice(begin, step))


def _messages(table: pa.Table) -> list[NewMessage]:
    names = table.column_names
    columns: dict[str, list[Any]] = {
        name: table.column(name).to_pylist() for name in names if name != "headers"
    }
    if None in columns["payload"]:
        raise BadInput("A payload is missing.", field="payload")
    rows = table.num_rows
    headers = _headers(table.column("headers")) if "headers" in names else [NO_HEADERS] * rows
    nothing = [None] * rows
    priorities = columns.get("priority", nothing)
    return [
        NewMessage(
            payload,
            headers[row],
            columns.get("id", nothing)[row],
            columns.get("key", nothing)[row],
            columns.get("partition_key", nothing)[row],
            DEFAULT_PRIORITY if priorities[row] is None else priorities[row],
            columns.get("content_type", nothing)[row],
            columns.get("deliver_at", nothing)[row],
            columns.get("expires_at", nothing)[row],
            columns.get("delay_ms", nothing)[row],
            columns.get("ttl_ms", nothing)[row],
            max_attempts=columns.get("max_attempts", nothing)[row],
        )
        for row, payload in enumerate(columns["payload"])
    ]


def _check_names(names: list[str]) -> None:
    known = ", ".join(sorted(_COLUMNS))
    for name in names:
        if name not in _COLUMNS:
            raise BadInput(f"A batch has no column {name!r}; it has {known}.", field="body")
        if names.count(name) > 1:
            raise BadInput(f"The column {name} occurs more than once.", field="body")
    if "payload" not in names:
        raise BadInput("The column payload is missing.", field="payload")


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        batch.validate(full=True)
        yield batch


def _plain(table: pa.Table, size: int) -> pa.Table:
    """The columns in the types of message fields."""
    columns = {}
    remaining = size
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            # Every row may refer to one large value, so count the rows, of all columns together.
            remaining -= _dictionary_bytes(column, name)
            if remaining < 0:
                raise TooLarge(
                    f"The column {name} takes the batch over {size} bytes.", field=name, limit=size
                )
        columns[name] = _column(column, name)
    return pa.table(columns)


def _column(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if name == "headers":
        return _header_column(column)
    wanted = pa.binary() if name == "payload" else pa.string() if name in _TEXT else pa.int64()
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not _is_plain(kind):
        # Views and runs may refer to the same bytes any number of times.
        raise BadInput(f"The column {name} is {column.type}; it must be {wanted}.", field=name)
    try:
        return column.cast(wanted)
    except (pa.ArrowException, ValueError) as error:
        raise BadInput(f"The column {name} is not {wanted}.", field=name) from error


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or (pa.types.is_primitive(kind) and not pa.types.is_dictionary(kind))
        or pa.types.is_null(kind)
    )


def _dictionary_bytes(column: pa.ChunkedArray, name: str) -> int:
    """The total size of the rows of a dictionary column."""
    total = 0
    for chunk in column.chunks:
        if not _is_plain(chunk.dictionary.type):
            raise BadInput(f"The column {name} is {column.type}.", field=name)
        if not (pa.types.is_primitive(chunk.dictionary.type) or not len(chunk)):
            lengths = pc.binary_length(chunk.dictionary)
            total += pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0
    return total


def _header_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        if longest > _JSON_HEADERS_BYTES:
            raise TooLarge(
                f"The headers of a message have {longest} bytes.",
                field="headers",
                limit=_JSON_HEADERS_BYTES,
            )
        return column
    if not kind.equals(_HEADERS):
        raise BadInput("headers must be a map of typed values, or JSON text.", field="headers")
    for chunk in column.chunks:
        most = pc.max(pc.subtract(chunk.offsets[1:], chunk.offsets[:-1])).as_py() or 0
        if most > MAX_HEADERS:
            raise TooLarge(
                f"{most} headers are over the limit of {MAX_HEADERS}.",
                field="headers",
                limit=MAX_HEADERS,
            )
    return column


def _headers(column: pa.ChunkedArray) -> list[dict[str, HeaderValue]]:
    """Headers as a map of typed values, or as a JSON object in text."""
    rows = column.to_pylist()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            return [NO_HEADERS if row is None else _json_headers.decode(row) for row in rows]
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadInput(f"headers cannot be read: {error}.", field="headers") from error
    return [NO_HEADERS if row is None else dict(map(_header, row)) for row in rows]


def _header(item: tuple[str, dict[str, HeaderValue | None]]) -> tuple[str, HeaderValue]:
    name, typed = item
    values = [value for value in (typed or {}).values() if value is not None]
    if len(values) != 1:
        raise BadInput(f"The header {name!r} must have exactly one value.", field="headers")
    return name, values[0]
