"""Queues as objects: put, change, list, delete, pause; and isolation (Q1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.errors import (
    QueueChanged,
    QueueExists,
    QueueNotEmpty,
    StoreClosed,
    UnknownDelivery,
    UnknownQueue,
)
from penstock.model.delivery import ReplaySource
from penstock.model.queue import Backoff, IfExists, Ordering, QueuePolicy, Start
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

__all__ = ["TestClosing", "TestIsolation", "TestQueues"]


class TestQueues(Conformance):
    """Creating, changing and deleting a queue."""

    async def test_an_existing_queue_is_kept_if_asked(self, store: Store) -> None:
        made = await store.engine.put_queue(TENANT, "q", QueuePolicy(max_attempts=3), Start())
        kept = await store.engine.put_queue(
            TENANT, "q", QueuePolicy(filter="a = 1"), Start(), IfExists.KEEP
        )
        assert kept == made == await store.engine.get_queue(TENANT, "q")
        new = await store.engine.put_queue(TENANT, "new", QueuePolicy(), Start(), IfExists.KEEP)
        assert new == await store.engine.get_queue(TENANT, "new")

    @law("E1")
    async def test_a_change_of_what_another_call_has_changed_is_refused(self, store: Store) -> None:
        """So two servers that change different fields lose neither."""
        was = (await store.engine.put_queue(TENANT, "q", QueuePolicy(), Start())).policy
        await store.engine.pause(TENANT, "q", True)
        changed = replace(was, max_attempts=3)
        with pytest.raises(QueueChanged):
            await store.engine.put_queue(TENANT, "q", changed, Start(), was=was)
        now = (await store.engine.get_queue(TENANT, "q")).policy
        assert now == replace(was, paused=True)
        await store.engine.put_queue(TENANT, "q", replace(now, max_attempts=3), Start(), was=now)
        now = (await store.engine.get_queue(TENANT, "q")).policy
        assert (now.paused, now.max_attempts) == (True, 3)
        with pytest.raises(UnknownQueue):
            await store.engine.put_queue(TENANT, "gone", changed, Start(), was=was)
        assert [info.name for info in await store.engine.list_queues(TENANT)] == ["q"]

    @law("E1")
    async def test_an_existing_queue_with_another_policy_is_refused_if_asked(
        self, store: Store
    ) -> None:
        policy = QueuePolicy(max_attempts=3, labels={"a": "b"})
        made = await store.engine.put_queue(TENANT, "q", policy, Start(), IfExists.REFUSE)
        with pytest.raises(QueueExists) as refused:
            await store.engine.put_queue(TENANT, "q", QueuePolicy(), Start(), IfExists.REFUSE)
        assert refused.value.field == "max_attempts"
        assert await store.engine.get_queue(TENANT, "q") == made
        # A repeated call succeeds, even if an operator has paused the queue meanwhile.
        await store.engine.pause(TENANT, "q", True)
        again = await store.engine.put_queue(TENANT, "q", policy, Start(), IfExists.REFUSE)
        assert again.policy == replace(policy, paused=True)
        # Nor do events matter, which webhooks add.
        reporting = replace(again.policy, events=("done",))
        await store.engine.put_queue(TENANT, "q", reporting, Start())
        again = await store.engine.put_queue(TENANT, "q", policy, Start(), IfExists.REFUSE)
        assert again.policy == reporting

    async def test_a_queue_comes_back_as_it_was_put(self, store: Store) -> None:
        policy = QueuePolicy(
            filter="color = 'red' AND amount > 1.5",
            max_attempts=7,
            lease_ms=1234,
            min_lease_ms=500,
            max_lease_ms=99_000,
            backoff=Backoff(base_ms=5, max_ms=77),
            done_retention_s=11,
            failed_retention_s=12,
            max_depth=1000,
            message_ttl_ms=60_000,
            throughput_limit=50,
            ordering=Ordering.PARTITION,
            partition_concurrency=1,
            partition_batch=7,
            bucket_size=4,
            paused=True,
            dead_letters=False,
            dead_letter_topic="dead",
            dead_letter_expired=True,
            events=("done", "expired"),
            description="Rote Bestellungen: ü",
            labels={"team": "Bestellungen", "tier": ""},
        )
        put = await store.engine.put_queue(TENANT, "q", policy, Start())
        assert put == await store.engine.get_queue(TENANT, "q")
        assert put.policy == policy
        assert (put.tenant, put.name, put.filter_version) == (TENANT, "q", 1)
        assert (put.created_at, put.cursor) == (store.clock.now(), None)

    async def test_putting_again_replaces_the_policy(self, store: Store) -> None:
        first = await store.queue(filter="a = 1", max_attempts=3)
        store.clock.advance(1000)
        same = await store.queue(filter="a = 1", max_attempts=4)
        assert (same.filter_version, same.policy.max_attempts) == (1, 4)
        assert same.created_at == first.created_at
        other = await store.queue(filter="a = 2", max_attempts=4)
        assert other.filter_version == 2
        back = await store.queue(filter="a = 1", max_attempts=4)
        assert back.filter_version == 3
        assert await store.engine.get_queue(TENANT, "q") == back

    async def test_a_changed_policy_applies_at_once(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        await store.queue(paused=True)
        assert await store.claim() == []
        info = await store.queue()
        await store.engine.put_queue(TENANT, "q", replace(info.policy, lease_ms=4321), Start())
        assert (await store.claim_one()).lease_deadline == store.clock.now() + 4321

    async def test_layout_changes_need_an_empty_queue(self, store: Store) -> None:
        await store.queue()
        await store.publish(b"x")
        before = await store.picture("q")
        await self.refuses_layout_changes(store)
        assert await store.picture("q") == before
        delivery = await store.claim_one()
        await self.refuses_layout_changes(store)
        await store.reject(delivery)
        await self.refuses_layout_changes(store)
        await store.engine.purge(TENANT, "q", State.FAILED, None, 9)
        info = await store.queue(ordering=Ordering.PARTITION, bucket_size=3)
        assert (info.policy.ordering, info.policy.bucket_size) == (Ordering.PARTITION, 3)
        (new,) = await store.publish(msg(partition_key="p"))
        assert (await store.engine.join(TENANT, "q", "c")).partitions.keys() == {"p"}
        assert ids_of(await store.claim()) == [new]

    async def refuses_layout_changes(self, store: Store) -> None:
        with pytest.raises(QueueNotEmpty):
            await store.queue(bucket_size=3)
        with pytest.raises(QueueNotEmpty):
            await store.queue(ordering=Ordering.PARTITION)

    async def test_what_is_done_does_not_hinder_a_change_of_layout(self, store: Store) -> None:
        await store.queue(bucket_size=2)
        done, again = await store.publish(b"x", b"y")
        for delivery in await store.claim(limit=2):
            await store.ack(delivery)
        await store.queue(bucket_size=0)
        assert await store.ids("q", State.DONE) == [done, again]
        (new,) = await store.publish(b"z")
        await store.engine.replay(TENANT, "q", ReplaySource.DONE, None, 1)
        assert ids_of(await store.claim(limit=9)) == [done, new]
        assert await store.ids("q", State.DONE) == [again]

    async def test_queues_are_listed_by_name(self, store: Store) -> None:
        names = ["b", "a.b", "a", "a-b", "B", "a0", "zz", "a.c"]
        for name in names:
            await store.queue(name)
        infos = await store.engine.list_queues(TENANT)
        assert [i.name for i in infos] == sorted(names)
        assert list(infos) == [await store.engine.get_queue(TENANT, n) for n in sorted(names)]

    async def test_unknown_queues(self, store: Store) -> None:
        await store.queue("other")
        for name in ("nope", "nope.dlq", "other2", "othe"):
            with pytest.raises(UnknownQueue):
                await store.engine.get_queue(TENANT, name)
            with pytest.raises(UnknownQueue):
                await store.engine.stats(TENANT, name)
            with pytest.raises(UnknownQueue):
                await store.engine.pause(TENANT, name, True)
        with pytest.raises(UnknownQueue):
            await store.engine.delete_queue(TENANT, "nope")
        assert await store.engine.list_queues(OTHER_TENANT) == ()

    async def test_deleting_removes_everything_but_the_log(self, store: Store) -> None:
        await store.queue(max_attempts=9)
        now = store.clock.now()
        ids = await store.publish(*[b"x"] * 4, msg(deliver_at=now + 10))
        await store.ack(await store.claim_one(), b"r")
        await store.fail_one()
        await store.claim_one()
        await store.engine.delete_queue(TENANT, "q")
        with pytest.raises(UnknownQueue):
            await store.engine.get_queue(TENANT, "q")
        assert await store.engine.list_queues(TENANT) == ()
        assert [m.id for m in await store.log()] == ids
        for message_id in ids:
            assert await store.states(message_id) == {}
            assert await store.engine.history(TENANT, message_id) == ()
        with pytest.raises(UnknownQueue):
            await store.engine.delete_queue(TENANT, "q")

    async def test_a_queue_made_again_is_empty(self, store: Store) -> None:
        await store.queue(filter="TRUE", max_attempts=9)
        await store.queue(filter="TRUE AND TRUE")
        (message_id,) = await store.publish(b"x")
        await store.ack(await store.claim_one(), b"r")
        await store.engine.pause(TENANT, "q.dlq", True)
        await store.engine.delete_queue(TENANT, "q")
        store.clock.advance(10)
        info = await store.queue()
        assert (info.filter_version, info.created_at) == (1, store.clock.now())
        assert not (await store.engine.get_queue(TENANT, "q.dlq")).policy.paused
        stats = await store.engine.stats(TENANT, "q")
        assert (stats.depth, stats.done, stats.failed, stats.expired) == (0, 0, 0, 0)
        assert (stats.grants, stats.acks, stats.nacks, stats.failures) == (0, 0, 0, 0)
        with pytest.raises(UnknownDelivery):
            await store.engine.result(TENANT, "q", message_id)
        assert await store.claim() == []
        (new,) = await store.publish(b"y")
        assert ids_of(await store.claim(limit=9)) == [new]

    @law("S2")
    async def test_a_delayed_delivery_of_a_deleted_queue_is_gone(self, store: Store) -> None:
        await store.queue()
        await store.publish(msg(deliver_at=store.clock.now() + 10))
        await store.publish(b"x")
        await store.claim_one(lease_ms=1000)
        await store.engine.delete_queue(TENANT, "q")
        await store.queue()
        store.clock.advance(10_000)
        await store.sweep_all()
        assert await store.claim(limit=9) == []

    async def test_a_replay_id_of_a_deleted_queue_is_forgotten(self, store: Store) -> None:
        await store.publish(b"x")
        for _ in range(2):
            await store.queue()
            reply = await store.engine.replay(TENANT, "q", ReplaySource.LOG, None, 9, replay_id="r")
            assert reply.count == 1
            await store.engine.delete_queue(TENANT, "q")


class TestIsolation(Conformance):
    """Q1: no verb on A changes B."""

    @law("Q1")
    async def test_no_verb_on_a_changes_b(self, store: Store) -> None:
        await store.queue("a", max_attempts=2)
        await store.queue("ab", max_attempts=2)
        now = store.clock.now()
        await store.publish(*[b"x"] * 6, msg(deliver_at=now + 500), msg(expires_at=now + 500))
        for queue in ("a", "ab"):
            await store.ack(await store.claim_one(queue))
            await store.fail_one(queue)
            await store.claim_one(queue, lease_ms=500)
        before = await store.picture("ab")
        engine = store.engine
        claimed = await store.claim("a", 2)
        await store.nack(claimed[0])
        await store.release(claimed[1])
        await engine.replay(TENANT, "a", ReplaySource.FAILED, None, 9)
        await engine.replay(TENANT, "a", ReplaySource.DONE, None, 9)
        await engine.replay(TENANT, "a", ReplaySource.LOG, None, 9)
        await engine.pause(TENANT, "a", True)
        await engine.pause(TENANT, "a.dlq", True)
        await store.queue("a", "FALSE", max_attempts=1)
        await engine.purge(TENANT, "a", State.AVAILABLE, None, 2)
        await engine.route(TENANT, "a", 10)
        await engine.delete_queue(TENANT, "a")
        assert await store.picture("ab") == before

    @law("Q1")
    async def test_names_that_begin_alike_do_not_mix(self, store: Store) -> None:
        names = ["a", "a.b", "ab", "a-", "a.dlqx", "dlq"]
        for name in names:
            await store.queue(name, f"target = '{name}'")
        ids = await store.publish(*(msg(target=name) for name in names))
        for name, message_id in zip(names, ids, strict=True):
            assert await store.ids(name, State.AVAILABLE) == [message_id]
        await store.engine.delete_queue(TENANT, "a")
        for name, message_id in list(zip(names, ids, strict=True))[1:]:
            assert ids_of(await store.claim(name, 9)) == [message_id]


class TestClosing(Conformance):
    """close."""

    async def test_closing_twice_is_fine_and_verbs_are_refused(self, store: Store) -> None:
        engine = store.engine
        await engine.close()
        await engine.close()
        with pytest.raises(StoreClosed):
            await engine.publish(TENANT, "t", [msg(b"x")])
        with pytest.raises(StoreClosed):
            await engine.claim(TENANT, "q", "c", 1, None)
        await store.open()
