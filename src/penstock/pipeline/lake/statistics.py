"""What a Delta log says of the rows of a file, so that readers can skip it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.pipeline.lake.commits import File, Table

__all__ = ["file_of", "statistics"]

#: Of each table, the column of numbers and the one of times.
_COLUMNS: Final[dict[Table, tuple[str, str]]] = {
    "messages": ("offset", "timestamp"),
    "history": ("id", "at"),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def file_of(table: Table, action: Mapping[str, Any]) -> File:
    """A file by its entry in the log, which has no digest and no bytes of payloads."""
    number, time = _COLUMNS[table]
    topics, times = _bounds(action, "topic"), _bounds(action, time)
    return File(
        path=f"{table}/{action['path']}",
        table=table,
        rows=action.get("num_records") or 0,
        bytes=action["size_bytes"],
        first=action.get(f"min.{number}") or 0,
        last=action.get(f"max.{number}") or 0,
        digest="",
        largest=action.get("max.size") or 0,
        topics=topics,
        times=None if times is None else (_ms(times[0]), _ms(times[1])),
    )


def statistics(file: File, partitions: Sequence[str]) -> str:
    """The statistics of a file as JSON, without those of the columns in its path."""
    number, time = _COLUMNS[file.table]
    low: dict[str, object] = {number: file.first}
    high: dict[str, object] = {number: file.last}
    if file.times is not None:
        low[time], high[time] = (_iso(ms) for ms in file.times)
    if file.table == "messages":
        low["size"], high["size"] = 0, file.largest
    if file.topics is not None and "topic" not in partitions:
        low["topic"], high["topic"] = file.topics
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": low,
            "maxValues": high,
            "nullCount": dict.fromkeys(low, 0),
        }
    )


def _iso(ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


def _ms(time: datetime) -> int:
    return (time.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def _bounds(action: Mapping[str, Any], column: str) -> tuple[Any, Any] | None:
    low, high = action.get(f"min.{column}"), action.get(f"max.{column}")
    return None if low is None or high is None else (low, high)
