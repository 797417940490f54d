"""Checks that bulk reads return the same as single reads; every test ends with this check."""

from __future__ import annotations

from itertools import accumulate, pairwise

from penstock.model.columns import LogColumns
from penstock.model.delivery import LogPage
from penstock.model.message import NO_HEADERS, Message, MessageId, Offset
from penstock.storage.contract import Engine

__all__ = ["check_bulk", "messages_of", "payloads_of"]


def messages_of(columns: LogColumns) -> list[Message]:
    """The entries of columns as messages."""
    nothing = [None] * len(columns)
    rows = zip(
        columns.id,
        columns.offset,
        columns.topic,
        columns.priority,
        columns.published_at,
        columns.deliver_at,
        columns.expires_at or nothing,
        columns.size,
        columns.checksum,
        columns.partition_key or nothing,
        columns.key or nothing,
        columns.content_type or nothing,
        columns.headers or [NO_HEADERS] * len(columns),
        columns.max_attempts or nothing,
        strict=True,
    )
    return [Message(MessageId(row[0]), Offset(row[1]), *row[2:]) for row in rows]


async def payloads_of(engine: Engine, tenant: str, columns: LogColumns) -> list[bytes] | None:
    """The payloads of entries, one by one."""
    pieces = await engine.read_payloads(tenant, columns.offset, columns.size, columns.checksum)
    if pieces is None:
        return None
    whole = b"".join(pieces)
    ends = [0, *accumulate(columns.size)]
    assert len(whole) == ends[-1]
    return [whole[begin:end] for begin, end in pairwise(ends)]


async def check_bulk(engine: Engine, tenant: str, page: LogPage, *, histories: int) -> None:
    """Compare a page of the log, with payloads, and some histories with bulk reads."""
    if not page.entries:
        return
    start, limit = page.entries[0].message.offset, len(page.entries)
    columns = await engine.read_log_columns(tenant, start, limit)
    assert messages_of(columns) == [entry.message for entry in page.entries]
    assert columns.offset[-1] < columns.next_offset
    assert await payloads_of(engine, tenant, columns) == [entry.payload for entry in page.entries]
    found = await engine.read_history(tenant, start, limit)
    assert columns.offset[-1] < found.next_offset
    ids = [entry.message.id for entry in page.entries if not entry.message.is_replacement]
    assert [entry.message_id for entry in found.entries] == sorted(
        entry.message_id for entry in found.entries
    )
    assert {entry.message_id for entry in found.entries} <= set(ids)
    for message_id in ids[:: max(1, len(ids) // histories)][:histories]:
        alone = await engine.history(tenant, message_id)
        assert tuple(e.event for e in found.entries if e.message_id == message_id) == alone
