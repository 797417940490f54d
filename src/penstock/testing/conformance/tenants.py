"""Tenants: no name, id, receipt or count crosses between them (T1)."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownMessage, UnknownQueue
from penstock.model.delivery import ReplaySource
from penstock.model.message import Offset
from penstock.model.queue import Ordering, TopicPolicy
from penstock.model.states import State
from penstock.testing.conformance.harness import (
    OTHER_TENANT,
    TENANT,
    Conformance,
    Store,
    ids_of,
    msg,
)
from penstock.testing.laws import law

__all__ = ["TestTenantList", "TestTenants"]


class TestTenants(Conformance):
    """T1."""

    @law("T1")
    async def test_the_same_names_are_different_things(self, store: Store) -> None:
        await store.queue(max_attempts=3)
        await store.queue(tenant=OTHER_TENANT, max_attempts=7)
        mine = await store.publish(b"mine")
        theirs = await store.publish(b"theirs", tenant=OTHER_TENANT)
        assert (await store.engine.get_queue(TENANT, "q")).policy.max_attempts == 3
        assert (await store.engine.get_queue(OTHER_TENANT, "q")).policy.max_attempts == 7
        assert ids_of(await store.claim(limit=9)) == mine
        assert ids_of(await store.claim(limit=9, tenant=OTHER_TENANT)) == theirs

    @law("T1")
    async def test_what_one_has_the_other_does_not_see(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        engine = store.engine
        for call in (
            engine.get_queue(OTHER_TENANT, "q"),
            engine.stats(OTHER_TENANT, "q"),
            engine.claim(OTHER_TENANT, "q", "c", 1, None),
            engine.peek(OTHER_TENANT, "q", State.AVAILABLE, None, 9),
            engine.delete_queue(OTHER_TENANT, "q"),
        ):
            with pytest.raises(UnknownQueue):
                await call
        for reading in (
            engine.message(OTHER_TENANT, message_id),
            engine.history(OTHER_TENANT, message_id),
        ):
            with pytest.raises(UnknownMessage):
                await reading
        assert (await engine.read_log(OTHER_TENANT, Offset(0), 9)).entries == ()
        assert await engine.log_end(OTHER_TENANT) == 0
        assert await engine.list_queues(OTHER_TENANT) == ()

    @law("T1")
    async def test_no_verb_of_one_changes_the_other(self, store: Store) -> None:
        for tenant in (TENANT, OTHER_TENANT):
            await store.queue(tenant=tenant, max_attempts=1)
            await store.queue("p", ordering=Ordering.PARTITION, tenant=tenant)
            await store.publish(*(msg(partition_key=p, key=p) for p in "abc"), tenant=tenant)
            await store.engine.join(tenant, "p", "c")
        before = [await store.picture(q, OTHER_TENANT) for q in ("q", "p")]
        log = await store.log(tenant=OTHER_TENANT)
        engine = store.engine
        await store.publish(msg(key="a"), msg(id="i"))
        await store.nack(await store.claim_one())
        await store.ack(await store.claim_one())
        await engine.replay(TENANT, "q", ReplaySource.FAILED, None, 9)
        await engine.join(TENANT, "p", "d")
        await engine.leave(TENANT, "p", "c")
        await engine.pause(TENANT, "q", True)
        await engine.purge(TENANT, "q", State.AVAILABLE, None, 9)
        await engine.delete_queue(TENANT, "q")
        assert [await store.picture(q, OTHER_TENANT) for q in ("q", "p")] == before
        assert await store.log(tenant=OTHER_TENANT) == log

    @law("T1")
    async def test_tenants_that_begin_alike_do_not_mix(self, store: Store) -> None:
        tenants = ["t", "t.q", "tq", "t-", "T"]
        for tenant in tenants:
            for name in ("q", "q.q", "qq"):
                await store.queue(name, tenant=tenant)
            await store.publish(tenant.encode(), tenant=tenant)
        for tenant in tenants:
            for name in ("q", "q.q", "qq"):
                claimed = await store.claim(name, 9, tenant=tenant)
                assert [d.payload for d in claimed] == [tenant.encode()]
            assert [q.name for q in await store.engine.list_queues(tenant)] == ["q", "q.q", "qq"]

    @law("T1")
    async def test_watermark_and_lag_are_the_tenants_own(self, store: Store) -> None:
        await store.queue()
        (mine,) = await store.publish(b"x")
        await store.publish(*[b"y"] * 5, tenant=OTHER_TENANT)
        await store.ack(await store.claim_one())
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.watermark, stats.lag) == (Offset(mine), 0)


class TestTenantList(Conformance):
    """Which tenants are listed."""

    async def test_an_empty_store_has_none(self, store: Store) -> None:
        assert await store.engine.tenants() == ()

    async def test_a_queue_a_topic_or_an_entry_is_enough(self, store: Store) -> None:
        await store.queue(tenant="queue")
        await store.engine.put_topic("topic", "t", TopicPolicy())
        await store.publish(b"x", tenant="entry")
        assert await store.engine.tenants() == ("entry", "queue", "topic")

    @law("T1")
    async def test_asking_for_a_tenant_does_not_make_it(self, store: Store) -> None:
        await store.engine.list_queues("asked")
        await store.engine.get_topic("asked", "t")
        await store.engine.log_end("asked")
        with pytest.raises(UnknownQueue):
            await store.claim(tenant="asked")
        assert await store.engine.tenants() == ()

    async def test_what_had_only_a_queue_or_a_topic_is_gone_with_it(self, store: Store) -> None:
        await store.queue(tenant="a")
        await store.engine.put_topic("b", "t", TopicPolicy())
        await store.engine.delete_queue("a", "q")
        await store.engine.delete_topic("b", "t")
        assert await store.engine.tenants() == ()

    @law("P1")
    async def test_they_are_there_after_reopening(self, store: Store) -> None:
        await store.queue(tenant="queue")
        await store.engine.put_topic("topic", "t", TopicPolicy())
        await store.publish(b"x", tenant="entry")
        await store.reopen()
        assert await store.engine.tenants() == ("entry", "queue", "topic")
