"""The log and its messages: what is settled, what was replaced, what is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from penstock.errors import UnknownMessage
from penstock.model.message import MessageId, Offset
from penstock.model.states import State, Transition
from penstock.storage.sql import log
from penstock.storage.sql.database import Session
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.segments import Segment
from penstock.testing.conformance.harness import OTHER_TENANT, TENANT, msg
from penstock.testing.laws import law
from tests.databases import server
from tests.unit.storage.sql.ordered import Pair, opened_pair


@pytest.fixture(params=["postgresql", "mysql"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with opened_pair(request.param) as pair:
        yield pair


@law("L2")
@pytest.mark.parametrize("pair", ["postgresql"], indirect=True)
async def test_nothing_is_read_beyond_a_publish_that_is_open(pair: Pair) -> None:
    """The log, its end and the watermark wait for it; the queue does not."""
    first, second = pair.first.engine, pair.second.engine
    await pair.first.queue()
    (before,) = await pair.first.publish(b"before")
    connection = await asyncpg.connect(server("postgresql").url("partitions"))
    try:
        transaction = connection.transaction()
        await transaction.start()
        reply = await first.publish_within(connection, TENANT, "orders", [msg(b"open")])
        (late,) = await pair.second.publish(b"late")
        for engine in (first, second):
            page = await engine.read_log(TENANT, Offset(0), 99, payloads=True)
            assert [e.payload for e in page.entries] == [b"before"]
            assert page.next_offset == before + 1
            assert await engine.log_end(TENANT) == before + 1
        assert await pair.second.ids("q", State.AVAILABLE) == [before, late]
        assert (await second.message(TENANT, late)).payload == b"late"
        await transaction.commit()
    finally:
        await connection.close()
    page = await second.read_log(TENANT, Offset(before + 1), 99, payloads=True)
    assert [e.payload for e in page.entries] == [b"open", b"late"]
    assert [e.message.id for e in page.entries] == [reply.messages[0].id, late]
    assert await second.log_end(TENANT) == late + 1


@law("L1")
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
@pytest.mark.parametrize("payloads", [False, True])
async def test_pages_begin_and_end_inside_segments(
    pair: Pair, limit: int, payloads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_MAX_SEGMENTS", 2)
    monkeypatch.setattr(log, "_MAX_WHOLE_SEGMENTS", 2)
    ids: list[MessageId] = []
    for n in range(5):
        ids += await pair.first.publish(*[b"%d" % n] * (n % 3 + 1))
        await pair.first.publish(b"not theirs", tenant=OTHER_TENANT)
    read: list[MessageId] = []
    offset = Offset(0)
    while (
        page := await pair.second.engine.read_log(TENANT, offset, limit, payloads=payloads)
    ).entries:
        assert len(page.entries) <= limit
        assert all((e.payload is not None) is payloads for e in page.entries)
        read += [e.message.id for e in page.entries]
        offset = page.next_offset
    assert read == ids
    assert page.next_offset == offset == ids[-1] + 1
    # From between two segments, and from beyond everything there may ever be.
    page = await pair.first.engine.read_log(TENANT, Offset(ids[0] + 1), 1)
    assert [e.message.id for e in page.entries] == ids[1:2]
    page = await pair.first.engine.read_log(TENANT, Offset(1 << 70), 1)
    assert (page.entries, page.next_offset) == ((), 1 << 70)


async def test_what_is_no_id_of_a_message(pair: Pair) -> None:
    await pair.first.queue()
    (message_id,) = await pair.first.publish(msg(b"old", key="k"))
    reply = await pair.first.engine.publish(TENANT, "orders", [msg(b"new", key="k")])
    replacement = reply.messages[0].offset
    engine = pair.second.engine
    for other in (-1, 0, message_id + 1, int(replacement), 1 << 63, 1 << 70):
        for call in (
            engine.message(TENANT, MessageId(other)),
            engine.history(TENANT, MessageId(other)),
            engine.result(TENANT, "q", MessageId(other)),
        ):
            with pytest.raises(UnknownMessage):
                await call
    assert (await engine.message(TENANT, message_id)).payload == b"new"


async def test_a_replaced_message_outlives_its_first_entry(pair: Pair) -> None:
    await pair.first.queue()
    (message_id,) = await pair.first.publish(msg(b"old", key="k"))
    await pair.first.publish(msg(b"new", key="k"))
    pair.sql(f"DELETE FROM penstock_log WHERE segment = {message_id >> 14}")
    for engine in (pair.first.engine, pair.second.engine):
        found = await engine.message(TENANT, message_id)
        assert (found.message.id, found.payload) == (message_id, b"new")
        assert [s.state for s in found.deliveries] == [State.AVAILABLE]
        (event,) = await engine.history(TENANT, message_id)
        assert event.transition is Transition.PUBLISH


async def test_a_message_that_another_server_removed_is_gone_here_too(pair: Pair) -> None:
    """Whatever this server remembers of it."""
    (message_id,) = await pair.first.publish(b"x")
    assert (await pair.first.engine.message(TENANT, message_id)).payload == b"x"
    pair.sql(f"DELETE FROM penstock_log WHERE segment = {message_id >> 14}")
    with pytest.raises(UnknownMessage):
        await pair.first.engine.message(TENANT, message_id)


async def test_the_end_of_the_log_stays_where_it_was(pair: Pair) -> None:
    """What retention has removed counts, whether something is left or not."""
    engine = pair.first.engine
    assert await engine.log_end(TENANT) == 0
    ids = [(await pair.first.publish(*[b"x"] * 3))[-1] for _ in range(2)]
    assert await engine.log_end(TENANT) == ids[1] + 1
    for last, gone in ((ids[1], ids[1]), (ids[1], ids[0])):
        pair.sql(
            f"DELETE FROM penstock_log WHERE segment = {gone >> 14};"
            f"UPDATE penstock_tenant SET trimmed = {last + 1} WHERE name = '{TENANT}'"
        )
        assert await engine.log_end(TENANT) == last + 1
    assert await engine.log_end(OTHER_TENANT) == 0
    assert await engine.tenants() == (TENANT,)


async def test_history_of_one_that_never_ends_is_kept_short(pair: Pair) -> None:
    """The first event, and the newest."""
    await pair.first.queue(max_attempts=1000)
    (message_id,) = await pair.first.publish(b"x")
    for _ in range(60):
        pair.clock.advance(1)
        await pair.first.nack(await pair.first.claim_one(), "e" * 2000)
    events = await pair.second.engine.history(TENANT, message_id)
    assert events[0].transition is Transition.PUBLISH
    assert [e.transition for e in events[1:]] == [Transition.CLAIM, Transition.NACK] * 50
    assert events[-1].at == pair.clock.now()


@law("L2")
async def test_a_segment_without_entries_is_not_the_end_of_the_log(pair: Pair) -> None:
    """Seed 335 of the simulation: it hid the whole log, and must not make readers wait for it."""
    (first,) = await pair.first.publish(b"1")
    engine = pair.first.engine
    assert isinstance(engine, SqlEngine)
    core = engine._core
    tenant = (await core.catalog.tenant(TENANT)).number

    async def append(session: Session) -> None:
        await session.append([(tenant, 1, 0, Segment.encode([]), b"")])

    await core.run_without_tenant(append, transaction=True)
    assert await pair.second.engine.log_end(TENANT) == first + 1
