"""The log: strictly increasing offsets, entries that never change, a stable prefix."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from penstock.model.checksum import checksum
from penstock.model.message import MessageId, Offset
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    msg,
)
from penstock.testing.laws import law

__all__ = ["TestLog"]


class TestLog(Conformance):
    """L1 and L2."""

    async def test_an_empty_log(self, store: Store) -> None:
        page = await store.engine.read_log(TENANT, Offset(0), 10)
        assert page.entries == ()
        assert page.next_offset == 0
        assert await store.engine.log_end(TENANT) == 0

    @law("L1")
    async def test_offsets_strictly_increase(self, store: Store) -> None:
        ids: list[MessageId] = []
        for n in range(1, 6):
            ids += await store.publish(*[b"x"] * n)
            await store.publish(b"between", tenant=OTHER_TENANT)
        entries = await store.log()
        assert [m.id for m in entries] == ids
        assert [m.offset for m in entries] == [Offset(i) for i in ids]
        assert all(a < b for a, b in pairwise(ids))

    async def test_the_end_is_after_the_last_entry(self, store: Store) -> None:
        ids = await store.publish(b"1", b"2")
        end = await store.engine.log_end(TENANT)
        assert end == ids[-1] + 1
        await store.publish(b"theirs", tenant=OTHER_TENANT)
        assert await store.engine.log_end(TENANT) == end

    async def test_reading_from_any_offset(self, store: Store) -> None:
        ids = await store.publish(*[b"x"] * 6)
        for n, start in enumerate(ids):
            page = await store.engine.read_log(TENANT, Offset(start), 100)
            assert [e.message.id for e in page.entries] == ids[n:]
        page = await store.engine.read_log(TENANT, Offset(ids[2] + 1), 2)
        assert [e.message.id for e in page.entries] == ids[3:5]

    @law("L2")
    async def test_a_reader_goes_on_from_where_it_stopped(self, store: Store) -> None:
        read: list[MessageId] = []
        published: list[MessageId] = []
        offset = Offset(0)
        for n in range(12):
            published += await store.publish(*[b"x"] * (n % 4 + 1))
            await store.publish(b"between", tenant=OTHER_TENANT)
            page = await store.engine.read_log(TENANT, offset, 3)
            assert page.next_offset >= offset
            read += [e.message.id for e in page.entries]
            offset = page.next_offset
        while (page := await store.engine.read_log(TENANT, offset, 3)).entries:
            read += [e.message.id for e in page.entries]
            offset = page.next_offset
        assert read == published
        (new,) = await store.publish(b"new")
        page = await store.engine.read_log(TENANT, offset, 3)
        assert [e.message.id for e in page.entries] == [new]

    @law("L2")
    async def test_concurrent_publishers_leave_a_stable_prefix(self, store: Store) -> None:
        """No entry appears below an offset that a reader has passed."""
        seen: list[MessageId] = []
        offset = Offset(0)
        done = asyncio.Event()

        async def read() -> None:
            nonlocal offset
            finished = False
            while not finished:
                finished = done.is_set()
                page = await store.engine.read_log(TENANT, offset, 7)
                seen.extend(e.message.id for e in page.entries)
                offset = page.next_offset
                finished = finished and not page.entries
                await asyncio.sleep(0)

        async def publish() -> list[MessageId]:
            ids: list[MessageId] = []
            for _ in range(10):
                ids += await store.publish(b"1", b"2")
            return ids

        reader = asyncio.create_task(read())
        published = await asyncio.gather(*(publish() for _ in range(8)))
        done.set()
        await reader
        assert seen == sorted(i for ids in published for i in ids)
        assert all(ids == sorted(ids) for ids in published)

    async def test_payloads_only_when_asked(self, store: Store) -> None:
        await store.publish(b"1", b"")
        page = await store.engine.read_log(TENANT, Offset(0), 10, payloads=True)
        assert [e.payload for e in page.entries] == [b"1", b""]
        page = await store.engine.read_log(TENANT, Offset(0), 10)
        assert [e.payload for e in page.entries] == [None, None]

    @law("L1")
    async def test_nothing_that_happens_to_a_delivery_changes_its_entry(self, store: Store) -> None:
        await store.queue(max_attempts=1)
        await store.publish(b"1", b"2", msg(b"3", expires_at=store.clock.now() + 10))
        before = await store.log()
        await store.ack(await store.claim_one())
        await store.nack(await store.claim_one())
        store.clock.advance(10)
        await store.sweep_all()
        await store.engine.purge(TENANT, "q", State.FAILED, None, 9)
        await store.engine.delete_queue(TENANT, "q")
        assert await store.log() == before

    @law("P3")
    async def test_a_replaced_entry_never_shows_another_payload(self, store: Store) -> None:
        """P3: an engine may drop the payload of a replaced entry, but must not confuse it."""
        await store.queue()
        await store.publish(msg(b"old", key="k"))
        await store.publish(msg(b"newer", key="k"))
        page = await store.engine.read_log(TENANT, Offset(0), 10, payloads=True)
        old, new = page.entries
        assert old.payload in (b"old", None)
        assert new.payload == b"newer"
        assert old.message.checksum == checksum(b"old")
        assert (old.message.size, new.message.size) == (3, 5)
