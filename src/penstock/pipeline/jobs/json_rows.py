"""JSON documents as messages: the payload is the text itself, fields come from its members.

Spark's JSON reader is not used because it changes values; see ``ingest_formats``. A text that is
no JSON, or lacks what a field of the message needs, is returned with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.pipeline.jobs.publishing import REJECTS

__all__ = ["FIELDS", "JsonRows", "is_json", "members_of"]

#: The fields of a message that a member can fill, and their types in Spark.
FIELDS: Final[Mapping[str, str]] = {
    "partition_key": "string",
    "replace_key": "string",
    "priority": "bigint",
    "headers": "string",
}
_ARROW: Final = {"string": pa.string(), "bigint": pa.int64()}
_JSON: Final = "application/json"
_MARK: Final = b"\xef\xbb\xbf"

_array: Final = msgspec.json.Decoder(list[msgspec.Raw])
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any: Final = msgspec.json.Decoder()
_priority: Final = msgspec.json.Decoder(int | None)
_headers: Final = msgspec.json.Decoder(dict[str, str | int | float | bool | None] | None)


def is_json(text: bytes) -> bool:
    """Whether the text is one complete JSON document."""
    try:
        _any.decode(text.removeprefix(_MARK))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def members_of(text: bytes) -> set[str]:
    """The names of the members of the objects in a text; none if it is no JSON."""
    found: set[str] = set()
    try:
        for document in _documents(text.removeprefix(_MARK).strip()):
            found |= set(_object.decode(document))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    return found


class JsonRows:
    """Splits batches of texts into messages and rejects; runs in Spark's workers."""

    def __init__(self, value: str | None, columns: Mapping[str, str]) -> None:
        self._value = value
        self._columns = dict(columns)

    @property
    def schema(self) -> str:
        """The columns of the messages, as Spark writes them."""
        fields = [f"{name} {FIELDS[name]}" for name in self._columns]
        return ", ".join(["value binary", "content_type string", *fields])

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The messages of a batch, and the texts that are none."""
        messages: list[list[Any]] = []
        rejects: list[tuple[str, bytes, str]] = []
        texts, files = batch.column("text"), batch.column("file")
        for row, file in zip(texts.to_pylist(), files.to_pylist(), strict=True):
            text = row.removeprefix(_MARK).strip()
            if not text:
                continue
            try:
                documents = list(_documents(text))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                rejects.append((file, text, f"no JSON: {error}"))
                continue
            for document in documents:
                try:
                    messages.append(self._message(document))
                except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
                    rejects.append((file, document, str(error)))
        return self._batch(messages), _rejected(rejects)

    def _message(self, document: bytes) -> list[Any]:
        if self._value is None and not self._columns:
            return [document, _JSON]
        try:
            members = _object.decode(document)
        except msgspec.ValidationError:
            raise ValueError("no JSON object, so it has no members") from None
        payload: bytes = document
        kind: str | None = _JSON
        if self._value is not None:
            if self._value not in members:
                raise ValueError(f"no member {self._value!r}, which has to be the payload")
            payload, kind = _payload(bytes(members[self._value]))
        fields = [
            _converted(name, column, members.get(column, msgspec.Raw(b"null")))
            for name, column in self._columns.items()
        ]
        return [payload, kind, *fields]

    def _batch(self, messages: list[list[Any]]) -> pa.RecordBatch:
        types = [pa.binary(), pa.string(), *(_ARROW[FIELDS[name]] for name in self._columns)]
        columns = zip(*messages, strict=True) if messages else ([] for _ in types)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        names = ["value", "content_type", *self._columns]
        return pa.RecordBatch.from_arrays(arrays, names)


def _documents(text: bytes) -> Iterator[bytes]:
    """The document, or the elements of an array, as they are written."""
    if text.startswith(b"["):
        yield from (bytes(one) for one in _array.decode(text))
        return
    # Raw alone would not check what is inside.
    _any.decode(text)
    yield text


def _payload(raw: bytes) -> tuple[bytes, str | None]:
    """A text is the payload itself; any other value stays JSON."""
    if raw.startswith(b'"'):
        return str(_any.decode(raw)).encode(), None
    return raw, _JSON


def _converted(name: str, column: str, raw: msgspec.Raw) -> Any:
    read = _CONVERTERS[name]
    try:
        return read(bytes(raw))
    except msgspec.MsgspecError as error:
        raise ValueError(f"the member {column!r} is no {name}: {error}") from None


def _text(raw: bytes) -> str | None:
    """The text of a value; of a number or an object, its JSON."""
    value = _any.decode(raw)
    return value if value is None or isinstance(value, str) else raw.decode()


def _header_text(raw: bytes) -> str | None:
    values = _headers.decode(raw)
    if values is None:
        return None
    kept = {name: value for name, value in values.items() if value is not None}
    return msgspec.json.encode(kept).decode()


_CONVERTERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "partition_key": _text,
    "replace_key": _text,
    "priority": _priority.decode,
    "headers": _header_text,
}


def _rejected(rejects: list[tuple[str, bytes, str]]) -> pa.RecordBatch:
    columns = zip(*rejects, strict=True) if rejects else ([] for _ in REJECTS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, REJECTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REJECTS)
