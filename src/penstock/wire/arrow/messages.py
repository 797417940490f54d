"""Messages to publish, from an Arrow IPC stream."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import BadInput, TooLarge
from penstock.filters.to_arrow import METADATA_SCHEMA
from penstock.model.limits import DEFAULT_PRIORITY, MAX_BATCH
from penstock.model.message import NO_HEADERS, HeaderValue, NewMessage

__all__ = ["read_messages"]

_TEXT: Final = ("id", "key", "partition_key", "content_type")
_NUMBERS: Final = ("priority", "deliver_at", "expires_at", "delay_ms", "ttl_ms")
_COLUMNS: Final = frozenset({"payload", "headers", *_TEXT, *_NUMBERS})
_json_headers: Final = msgspec.json.Decoder(dict[str, HeaderValue])


def read_messages(body: bytes) -> list[NewMessage]:
    """The messages of an Arrow IPC stream; ``BadInput`` says what is wrong with it."""
    try:
        with pa.ipc.open_stream(body) as reader:
            table = _bounded(reader)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"The Arrow stream cannot be read: {error}.", field="body") from error
    names = table.column_names
    unknown = sorted(set(names) - _COLUMNS)
    if unknown or len(set(names)) != len(names):
        wrong = unknown[0] if unknown else "one that is there twice"
        raise BadInput(
            f"A batch has no column {wrong!r}; it has {', '.join(sorted(_COLUMNS))}.", field="body"
        )
    if "payload" not in names:
        raise BadInput("The column payload is missing.", field="payload")
    columns: dict[str, list[Any]] = {
        name: _column(table, name) for name in names if name != "headers"
    }
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
        )
        for row, payload in enumerate(columns["payload"])
    ]


def _bounded(reader: Any) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch in reader:
        batch.validate(full=True)
        rows += batch.num_rows
        if rows > MAX_BATCH:
            raise TooLarge(
                f"A batch has more than {MAX_BATCH} messages.", field="messages", limit=MAX_BATCH
            )
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _column(table: pa.Table, name: str) -> list[Any]:
    column = table.column(name)
    wanted = pa.binary() if name == "payload" else pa.string() if name in _TEXT else pa.int64()
    try:
        values: list[Any] = column.cast(wanted).to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise BadInput(f"The column {name} is not {wanted}.", field=name) from error
    if name == "payload" and None in values:
        raise BadInput("A payload is missing.", field="payload")
    return values


def _headers(column: pa.ChunkedArray) -> list[dict[str, HeaderValue]]:
    """Headers as a map of typed values, or as a JSON object in text."""
    rows = column.to_pylist()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            return [NO_HEADERS if row is None else _json_headers.decode(row) for row in rows]
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadInput(f"headers cannot be read: {error}.", field="headers") from error
    if not column.type.equals(METADATA_SCHEMA.field("headers").type):
        raise BadInput("headers is a map of typed values, or JSON text.", field="headers")
    return [NO_HEADERS if row is None else dict(map(_header, row)) for row in rows]


def _header(item: tuple[str, dict[str, HeaderValue | None]]) -> tuple[str, HeaderValue]:
    name, typed = item
    values = [value for value in (typed or {}).values() if value is not None]
    if len(values) != 1:
        raise BadInput(f"The header {name!r} has not exactly one value.", field="headers")
    return name, values[0]
