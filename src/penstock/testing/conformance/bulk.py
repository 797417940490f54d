"""Bulk reads: columns, payloads in pieces, splits, histories; the same as single reads."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.errors import UnknownQueue
from penstock.model.message import MessageId, NewMessage, Offset
from penstock.model.states import Transition
from penstock.testing.bulk import messages_of, payloads_of
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    msg,
    opened_with,
)
from penstock.testing.laws import law

__all__ = ["TestColumns", "TestReadHistory", "TestSplits"]

DAY_MS = 24 * 3600 * 1000


class TestColumns(Conformance):
    """read_log_columns and read_payloads (L1, L2, P3)."""

    async def test_an_empty_log(self, store: Store) -> None:
        columns = await store.engine.read_log_columns(TENANT, Offset(7), 10)
        assert len(columns) == 0
        assert columns.next_offset == 7
        assert await store.engine.read_payloads(TENANT, (), (), ()) == []

    async def test_every_field(self, store: Store) -> None:
        """Messages of the same and of different shapes, in one batch and in several."""
        now = store.clock.now()
        await store.publish(*[b"plain"] * 5)
        await store.publish(
            msg(b"1", key="k", partition_key="p", content_type="text/plain", priority=9),
            msg(b"", deliver_at=now + 10, expires_at=now + 99),
            msg(b"h", text="ä", number=-1, real=0.5, truth=True),
            NewMessage(b"limit", {"n": 1}, max_attempts=3),
            NewMessage(b"most", max_attempts=65_535),
            b"plain",
        )
        await store.publish(msg(b"newer", key="k"))
        await store.publish(b"other", topic="another.topic")
        page = await store.engine.read_log(TENANT, Offset(0), 100, payloads=True)
        assert len(page.entries) == 13
        columns = await store.engine.read_log_columns(TENANT, Offset(0), 100)
        assert messages_of(columns) == [entry.message for entry in page.entries]
        assert await payloads_of(store.engine, TENANT, columns) == [
            entry.payload for entry in page.entries
        ]

    @law("L2")
    async def test_from_any_offset_in_pages_of_any_size(self, store: Store) -> None:
        for n in range(1, 6):
            await store.publish(*[b"x" * n] * n, topic=f"topic{'s' * (n % 2)}")
            await store.publish(b"theirs", tenant=OTHER_TENANT)
        every = [entry.offset for entry in await store.log()]
        for start in every:
            for limit in (1, 3, 100):
                columns = await store.engine.read_log_columns(TENANT, start, limit)
                begin = every.index(start)
                assert list(columns.offset) == every[begin : begin + limit]
                assert columns.next_offset > columns.offset[-1]
        columns = await store.engine.read_log_columns(TENANT, Offset(every[-1] + 1), 100)
        assert len(columns) == 0
        assert columns.next_offset >= every[-1] + 1

    async def test_one_large_batch_in_small_pages(self, store: Store) -> None:
        """A batch that is one record, and is not decoded again for every page."""
        plain = [msg(b"%d" % n) for n in range(600)]
        mixed = [msg(b"%d" % n, key="k" * (n % 3) or None) for n in range(600)]
        await store.publish(*plain)
        await store.publish(*mixed)
        entries = await store.log()
        read = []
        position = entries[0].offset
        while True:
            columns = await store.engine.read_log_columns(TENANT, position, 350)
            if not len(columns):
                break
            read += messages_of(columns)
            position = columns.next_offset
        assert read == entries

    async def test_payloads_of_some_entries(self, store: Store) -> None:
        """A filter leaves gaps; the requested payloads are returned in order."""
        await store.publish(*[b"%d" % n * 3 for n in range(40)])
        await store.publish(b"theirs", tenant=OTHER_TENANT)
        await store.publish(*[b"%d" % n for n in range(40)])
        page = await store.engine.read_log(TENANT, Offset(0), 100, payloads=True)
        for wanted in (page.entries[1::3], page.entries[:1], page.entries[9:71], page.entries):
            messages = [entry.message for entry in wanted]
            pieces = await store.engine.read_payloads(
                TENANT,
                [message.offset for message in messages],
                [message.size for message in messages],
                [message.checksum for message in messages],
            )
            assert pieces is not None
            assert b"".join(pieces) == b"".join(entry.payload or b"" for entry in wanted)

    @law("G1")
    @opened_with(log_retention_ms=1000)
    async def test_entries_that_retention_took_meanwhile(self, store: Store) -> None:
        await store.publish(*[b"old"] * 10)
        columns = await store.engine.read_log_columns(TENANT, Offset(0), 100)
        store.clock.advance(2 * DAY_MS)
        (last,) = await store.publish(b"new")
        await store.sweep_all()
        assert [entry.id for entry in await store.log()] == [last]
        assert await payloads_of(store.engine, TENANT, columns) is None
        assert await store.engine.log_start(TENANT) == Offset(last)
        # Offsets may have gaps, so the first existing one is not precise enough.
        assert await store.engine.log_trimmed(TENANT) == columns.offset[-1] + 1
        left = await store.engine.read_log_columns(TENANT, Offset(columns.offset[0]), 100)
        assert list(left.id) == [last]


class TestSplits(Conformance):
    """log_start and log_splits."""

    async def test_an_empty_log(self, store: Store) -> None:
        assert await store.engine.log_start(TENANT) == 0
        assert await store.engine.log_trimmed(TENANT) == 0
        assert await store.engine.log_splits(TENANT, Offset(0), Offset(10**9), 10) == (0,)

    async def test_pieces_of_about_as_many_entries(self, store: Store) -> None:
        for _ in range(20):
            await store.publish(*[b"x"] * 10)
            await store.publish(b"theirs", tenant=OTHER_TENANT)
        end = await store.engine.log_end(TENANT)
        every = [entry.offset for entry in await store.log()]
        assert await store.engine.log_start(TENANT) == every[0]
        splits = await store.engine.log_splits(TENANT, Offset(0), Offset(10**15), 50)
        assert (splits[0], splits[-1]) == (0, end)
        assert 4 <= len(splits) - 1 <= 6
        pieces = [
            [offset for offset in every if begin <= offset < stop]
            for begin, stop in pairwise(splits)
        ]
        assert [offset for piece in pieces for offset in piece] == every
        assert all(20 <= len(piece) <= 70 for piece in pieces[:-1])

    async def test_a_part_of_the_log(self, store: Store) -> None:
        await store.publish(*[b"x"] * 10)
        ids = [entry.offset for entry in await store.log()]
        assert await store.engine.log_splits(TENANT, ids[3], ids[7], 100) == (ids[3], ids[7])
        assert await store.engine.log_splits(TENANT, ids[3], ids[3], 100) == (ids[3],)
        end = await store.engine.log_end(TENANT)
        assert await store.engine.log_splits(TENANT, end, Offset(end + 9), 1) == (end,)


class TestReadHistory(Conformance):
    """read_history: the same as ``history`` of each message, in order."""

    async def test_lives_of_all_kinds(self, store: Store) -> None:
        now = store.clock.now()
        await store.queue("a", max_attempts=1)
        await store.queue("b", "topic = 'orders'")
        ids = await store.publish(
            *[b"x"] * 6, msg(b"late", deliver_at=now + 10**6), msg(expires_at=now + 500)
        )
        await store.publish(msg(b"old", key="k", priority=8), msg(b"new", key="k", priority=8))
        await store.publish(b"theirs", tenant=OTHER_TENANT)
        store.clock.advance(10)
        await store.fail_one("a", error="broken")
        await store.ack(await store.claim_one("a"))
        await store.claim_one("a", consumer="holder")
        await store.release(await store.claim_one("b"))
        store.clock.advance(1000)
        await store.sweep_all()
        await store.ack(await store.claim_one("a.dlq"))
        page = await store.engine.read_history(TENANT, Offset(0), 100)
        found: dict[MessageId, list[object]] = {}
        for entry in page.entries:
            found.setdefault(entry.message_id, []).append(entry.event)
        messages = {message.id for message in await store.log()}
        assert list(found) == sorted(messages)
        for message_id in messages:
            assert tuple(found[message_id]) == await store.engine.history(TENANT, message_id)
        transitions = {entry.event.transition for entry in page.entries}
        assert {Transition.REJECT, Transition.EXPIRE, Transition.ACK} <= transitions
        assert ids[0] in found

    async def test_in_pages_and_of_one_queue(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        ids = await store.publish(*[b"x"] * 7)
        position, seen = Offset(0), []
        while position <= ids[-1]:
            page = await store.engine.read_history(TENANT, position, 3, "b")
            assert {entry.event.queue for entry in page.entries} == {"b"}
            seen += [entry.message_id for entry in page.entries]
            position = page.next_offset
        assert seen == ids
        assert (await store.engine.read_history(TENANT, position, 3)).entries == ()

    async def test_without_queues_and_of_an_unknown_one(self, store: Store) -> None:
        ids = await store.publish(b"x")
        page = await store.engine.read_history(TENANT, Offset(0), 3)
        assert page.entries == ()
        assert page.next_offset > ids[0]
        with pytest.raises(UnknownQueue):
            await store.engine.read_history(TENANT, Offset(0), 3, "unknown")
