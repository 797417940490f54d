"""The log as columns: decodes thousands of records without creating an object per entry.

Most records hold messages with metadata of equal length, such as those of one topic without
headers. These form an array of equal elements, where a field is a strided slice: each byte of a
number is copied out for all elements with one slice. The tail of an element (topic, keys, headers)
is decoded once for all elements that share it. The checksums of every element and every payload are
verified (P3, X1).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, groupby, repeat
from typing import Any, Final, NamedTuple, TypeVar

from penstock.errors import StoreCorrupt
from penstock.model.checksum import first_wrong
from penstock.model.columns import LogColumns
from penstock.model.message import Offset
from penstock.storage.keyvalue.keys import payload_key
from penstock.storage.keyvalue.log import Log
from penstock.storage.keyvalue.metadata import HEAD_FORMAT, VERSION, decode_tail, max_attempts_of
from penstock.storage.keyvalue.stage import Stage

__all__ = ["read_columns", "read_payloads"]

T = TypeVar("T")

_COUNT: Final = struct.Struct("<H")
#: An element: messageID, metadata length, the metadata's head, its tail and its checksum.
_ELEMENT: Final = "QI" + HEAD_FORMAT
_BEFORE: Final = struct.Struct("<QI")
_FIXED: Final = struct.Struct("<" + _ELEMENT)
_SUM: Final = struct.Struct("<I")
#: The offset of an element: after messageID, length and version.
_OFFSET: Final = struct.Struct("<13xQ")
#: The position of the length in an element: after messageID.
_LENGTH: Final = 8
_WIDTHS: Final = tuple(struct.calcsize(f"<{code}") for code in _ELEMENT)
_NEVER: Final = -1
#: A record of at most this many messages is used whole, even if only some are wanted.
_SMALL: Final = 256
#: Consecutive payloads that make a scan worthwhile.
_LONG_RUN: Final = 8

#: Bytes of metadata per read: some milliseconds. One record of small messages may exceed it.
_MOST_BYTES: Final = 1024 * 1024

#: Elements that are unpacked by one call.
_BLOCK: Final = 64


class _Columns(NamedTuple):
    """Decoded elements: one column per field, in the order of the element's fields."""

    id: Sequence[int]
    length: Sequence[int]
    version: Sequence[int]
    offset: Sequence[int]
    published_at: Sequence[int]
    deliver_at: Sequence[int]
    expires_at: Sequence[int]
    priority: Sequence[int]
    size: Sequence[int]
    checksum: Sequence[int]
    flags: Sequence[int]
    tail: Sequence[bytes]
    """Topic, keys, headers."""
    sum: Sequence[int]


# -- metadata --------------------------------------------------------------------------


def read_columns(log: Log, name: str, start: Offset, limit: int) -> LogColumns:
    """Committed entries of a tenant from ``start`` on."""
    tenant = log.tenant(name)
    parts: list[bytes] = []
    count = 0
    remaining = _MOST_BYTES
    for first, value in log.records(tenant, start):
        if first >= tenant.committed_end:
            break
        most = limit - count
        if len(value) > remaining:
            # A record has at least one element; as many as fit, if they are of one length.
            most = min(most, max(1, remaining * int.from_bytes(value[:2], "little") // len(value)))
        body, held = _wanted(value, first, start, most)
        parts.append(body)
        count += held
        remaining -= len(body)
        if count >= limit or held == most or remaining <= 0:
            remaining = 0
            break
    if not count:
        return LogColumns.of((), max(start, Offset(tenant.committed_end)))
    columns = _columns(b"".join(parts), count)
    if count > limit:
        return _log_columns(columns, Offset(columns.offset[-1] + 1)).before(
            Offset(columns.offset[limit])
        )
    end = max(start, tenant.committed_end) if remaining else columns.offset[-1] + 1
    return _log_columns(columns, Offset(end))


def _wanted(value: bytes, first: int, start: int, most: int) -> tuple[bytes, int]:
    """The elements of a record from ``start`` on, possibly more than wanted, and their number."""
    try:
        (count,) = _COUNT.unpack_from(value)
        if first >= start and count <= _SMALL:
            return value[2:], count
        places = _places(value, 2, count)
        begin = bisect_left(places, start, key=lambda place: _OFFSET.unpack_from(value, place)[0])
    except struct.error as error:
        raise StoreCorrupt("A log entry is truncated.") from error
    end = begin + most
    if end < count:
        return value[places[begin] : places[end]], most
    return (value[places[begin] :], count - begin) if begin < count else (b"", 0)


def _places(body: bytes, begin: int, count: int) -> Sequence[int]:
    """The positions of the elements: a range if all have the same length."""
    stride, rest = divmod(len(body) - begin, count)
    if not rest and stride > _FIXED.size + _SUM.size:
        alike = range(begin, len(body), stride)
        length = (stride - _BEFORE.size).to_bytes(8, "little")
        if _numbers(body, alike, _LENGTH, 4).tobytes() == length * count:
            return alike
    places = []
    place = begin
    for _ in range(count):
        places.append(place)
        place += _BEFORE.size + _BEFORE.unpack_from(body, place)[1]
    if place != len(body):
        raise StoreCorrupt("A log entry has a wrong length.")
    return places


@lru_cache(maxsize=256)
def _block(before: int, size: int, after: int) -> struct.Struct:
    """Unpacks ``size`` bytes from each of ``_BLOCK`` elements with one call."""
    return struct.Struct("<" + f"{before}x{size}s{after}x" * _BLOCK)


def _pieces(body: bytes, places: range, begin: int, end: int) -> list[bytes]:
    """The bytes of each element from ``begin`` on, without the last ``end``."""
    block = _block(begin, places.step - begin - end, end)
    rest = places[len(places) // _BLOCK * _BLOCK :]
    pieces: list[bytes] = []
    for some in block.iter_unpack(memoryview(body)[places.start : rest.start]):
        pieces += some
    pieces += [body[place + begin : place + places.step - end] for place in rest]
    return pieces


def _numbers(body: bytes, places: range, begin: int, width: int) -> memoryview:
    """The number of ``width`` bytes at ``begin`` of each element, without an object for each."""
    numbers = bytearray(8 * len(places))
    first = places.start + begin
    for byte in range(width):
        numbers[byte::8] = body[first + byte :: places.step]
    return memoryview(numbers).cast("q")


def _are_all(column: Sequence[int], value: int) -> bool:
    """Whether all elements have this number."""
    if isinstance(column, memoryview):
        return column.tobytes() == value.to_bytes(8, "little", signed=True) * len(column)
    return column.count(value) == len(column)


def _tail_column(body: bytes, places: range) -> list[bytes]:
    """The tail of each element, which is usually the same for all."""
    begin, end = _FIXED.size, places.step - _SUM.size
    first, last = (body[place + begin : place + end] for place in (places[0], places[-1]))
    if first == last and all(
        body[places.start + begin + at :: places.step] == first[at : at + 1] * len(places)
        for at in range(len(first))
    ):
        return [first] * len(places)
    return _pieces(body, places, begin, _SUM.size)


def _alike(body: bytes, places: range) -> _Columns:
    """Decode elements of equal length."""
    begins = accumulate(_WIDTHS, initial=0)
    numbers = [_numbers(body, places, *field) for field in zip(begins, _WIDTHS, strict=False)]
    tails = _tail_column(body, places)
    sums = _numbers(body, places, places.step - _SUM.size, _SUM.size)
    return _Columns._make((*numbers, tails, sums))


def _unlike(body: bytes, places: Sequence[int]) -> _Columns:
    """Decode elements of different lengths."""
    rows = []
    for place in places:
        fields = _FIXED.unpack_from(body, place)
        end = place + _BEFORE.size + fields[1] - _SUM.size
        rows.append((*fields, body[place + _FIXED.size : end], *_SUM.unpack_from(body, end)))
    return _Columns._make(zip(*rows, strict=True))


def _columns(body: bytes, count: int) -> _Columns:
    """Decode the elements and verify each."""
    begin = _BEFORE.size
    try:
        places = _places(body, 0, count)
        if isinstance(places, range):
            columns = _alike(body, places)
            metadata = _pieces(body, places, begin, _SUM.size)
        else:
            columns = _unlike(body, places)
            end = begin - _SUM.size
            spans = zip(places, columns.length, strict=True)
            metadata = [body[place + begin : place + end + length] for place, length in spans]
    except struct.error as error:
        raise StoreCorrupt("A log entry is truncated.") from error
    wrong = first_wrong(metadata, columns.id, columns.sum)
    if wrong is not None:
        raise StoreCorrupt(f"The checksum of the metadata of message {columns.id[wrong]} is wrong.")
    if not _are_all(columns.version, VERSION):
        raise StoreCorrupt("The metadata of a message has an unknown format.")
    offsets = list(columns.offset)
    if offsets != sorted(offsets):
        raise StoreCorrupt("A log entry holds an offset below its own.")
    return columns


def _log_columns(columns: _Columns, next_offset: Offset) -> LogColumns:
    topics, partition_keys, keys, content_types, headers, attempts = _tails(
        columns.flags, columns.tail
    )
    return LogColumns(
        next_offset=next_offset,
        offset=columns.offset,
        id=columns.id,
        topic=topics,
        priority=columns.priority,
        published_at=columns.published_at,
        deliver_at=columns.deliver_at,
        size=columns.size,
        checksum=columns.checksum,
        expires_at=None
        if _are_all(columns.expires_at, _NEVER)
        else [None if value == _NEVER else value for value in columns.expires_at],
        partition_key=_unless_empty(partition_keys),
        key=_unless_empty(keys),
        content_type=_unless_empty(content_types),
        headers=headers if any(headers) else None,
        max_attempts=_unless_empty(attempts),
    )


def _tails(flags: Sequence[int], tails: Sequence[bytes]) -> list[Sequence[Any]]:
    """Topics, partition keys, keys, content types, headers and limits of attempts."""
    if _are_all(flags, flags[0]) and tails.count(tails[0]) == len(tails):
        return [[value] * len(tails) for value in _decoded(flags[0], tails[0])]
    pairs = list(zip(flags, tails, strict=True))
    decoded = {pair: _decoded(*pair) for pair in set(pairs)}
    return list(zip(*map(decoded.__getitem__, pairs), strict=True))


def _decoded(flags: int, tail: bytes) -> tuple[Any, ...]:
    return *decode_tail(tail, 0, flags), max_attempts_of(tail, len(tail), flags)


def _unless_empty(column: Sequence[T]) -> Sequence[T] | None:
    return None if column.count(None) == len(column) else column


# -- payloads --------------------------------------------------------------------------


def read_payloads(
    log: Log, stage: Stage, name: str, offsets: Sequence[int], sums: Sequence[int]
) -> list[bytes] | None:
    """The payloads of committed entries, with verified checksums; None if some were removed."""
    if not offsets:
        return []
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        runs = [list(offsets)]
    else:
        # Other tenants' entries are between them: consecutive offsets have the same offset - index.
        numbered = groupby(enumerate(offsets), key=lambda pair: pair[1] - pair[0])
        runs = [[offset for _, offset in run] for _, run in numbered]
    values: list[bytes] = []
    for run in runs:
        found = _read_run(log, stage, name, run)
        if found is None:
            return None
        values += found
    wrong = first_wrong(values, repeat(0), sums)
    if wrong is not None:
        raise StoreCorrupt(f"The checksum of the payload at offset {offsets[wrong]} is wrong.")
    return values


def _read_run(log: Log, stage: Stage, name: str, run: list[int]) -> list[bytes] | None:
    """The payloads at consecutive offsets."""
    if len(run) >= _LONG_RUN:
        values = stage.values(payload_key(run[0]), payload_key(run[-1] + 1))
        if len(values) == len(run):
            return values
    found: list[bytes] = []
    for offset, value in zip(run, stage.get_many([*map(payload_key, run)]), strict=True):
        if value is None:
            if log.at(name, offset) is None:
                return None
            raise StoreCorrupt(f"The payload at offset {offset} is missing.")
        found.append(value)
    return found
