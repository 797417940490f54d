"""Reading in bulk from a database: pages inside segments, damage, segments that are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.message import MessageId, Offset
from penstock.storage.sql import log
from penstock.testing.bulk import messages_of, payloads_of
from penstock.testing.conformance.harness import OTHER_TENANT, TENANT
from penstock.testing.laws import law
from tests.unit.storage.sql.ordered import Pair, opened_pair


@pytest.fixture
async def pair(dialect: str) -> AsyncIterator[Pair]:
    async with opened_pair(dialect) as opened:
        yield opened


async def publish_some(pair: Pair) -> list[MessageId]:
    """Segments of one to three entries, another tenant's between them."""
    ids: list[MessageId] = []
    for n in range(7):
        ids += await pair.first.publish(*[b"%d" % n * n] * (n % 3 + 1))
        await pair.first.publish(b"not theirs", tenant=OTHER_TENANT)
    return ids


@law("L1")
@pytest.mark.parametrize("limit", [1, 2, 5, 50])
async def test_pages_begin_and_end_inside_segments(
    pair: Pair, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_MAX_SEGMENTS", 2)
    monkeypatch.setattr(log, "_MAX_WHOLE_SEGMENTS", 2)
    await publish_some(pair)
    engine = pair.second.engine
    every = (await engine.read_log(TENANT, Offset(0), 99, payloads=True)).entries
    read, position = [], Offset(0)
    while len(columns := await engine.read_log_columns(TENANT, position, limit)):
        assert len(columns) <= limit
        payloads = await payloads_of(engine, TENANT, columns)
        assert payloads is not None
        read += list(zip(messages_of(columns), payloads, strict=True))
        position = columns.next_offset
    assert read == [(entry.message, entry.payload) for entry in every]


@law("X1")
async def test_a_damaged_segment_is_not_served(pair: Pair) -> None:
    ids = await publish_some(pair)
    engine = pair.second.engine
    columns = await engine.read_log_columns(TENANT, Offset(0), 99)
    broken = ids[-1] >> 14
    pair.sql(f"UPDATE penstock_log SET payloads = metadata WHERE segment = {broken}")
    with pytest.raises(StoreCorrupt, match="payload"):
        await payloads_of(engine, TENANT, columns)
    pair.sql(f"UPDATE penstock_log SET metadata = payloads, payloads = '' WHERE segment = {broken}")
    pair.sql(f"UPDATE penstock_log SET metadata = payloads WHERE segment = {broken}")
    for reading in (
        engine.read_log_columns(TENANT, Offset(0), 99),
        payloads_of(engine, TENANT, columns),
        engine.read_history(TENANT, Offset(0), 99),
    ):
        with pytest.raises(StoreCorrupt):
            await reading
    pair.sql(f"DELETE FROM penstock_log WHERE segment = {broken}")


async def test_payloads_of_a_segment_that_another_server_removed(pair: Pair) -> None:
    ids = await publish_some(pair)
    engine = pair.second.engine
    columns = await engine.read_log_columns(TENANT, Offset(0), 99)
    pair.sql(f"DELETE FROM penstock_log WHERE segment = {ids[3] >> 14}")
    assert await payloads_of(engine, TENANT, columns) is None


async def test_splits_are_where_segments_begin(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await publish_some(pair)
    engine = pair.second.engine
    splits = await engine.log_splits(TENANT, Offset(ids[1]), Offset(1 << 55), 3)
    assert [int(splits[0]), int(splits[-1])] == [int(ids[1]), ids[-1] + 1]
    assert all(split & 0x3FFF == 0 for split in splits[1:-1])
    counts = [sum(begin <= i < end for i in ids) for begin, end in pairwise(splits)]
    assert sum(counts) == len(ids) - 1
    assert max(counts) <= 5
    monkeypatch.setattr(log, "MAX_SPLITS", 2)
    few = await engine.log_splits(TENANT, Offset(0), Offset(1 << 55), 1)
    assert 2 <= len(few) - 1 <= 3
