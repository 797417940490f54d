"""result: the result of an ack."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownMessage, UnknownQueue
from penstock.model.delivery import Result
from penstock.model.message import MessageId
from penstock.testing.conformance.harness import TENANT, Conformance, Store
from penstock.testing.laws import law

__all__ = ["TestResults"]


class TestResults(Conformance):
    """Kept with the done record."""

    @pytest.mark.parametrize("result", [None, b"", b"\x00\xff", b"x" * 100_000])
    async def test_a_result_comes_back(self, store: Store, result: bytes | None) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        done_at = store.clock.advance(10)
        await store.ack(delivery, result)
        store.clock.advance(10)
        found = await store.engine.result(TENANT, "q", message_id)
        assert found == Result(message_id=message_id, result=result, done_at=done_at)

    async def test_none_while_it_is_not_done(self, store: Store) -> None:
        await store.queue()
        await store.queue("other", "FALSE")
        (message_id,) = await store.publish(b"x")
        assert await store.engine.result(TENANT, "q", message_id) is None
        delivery = await store.claim_one()
        assert await store.engine.result(TENANT, "q", message_id) is None
        await store.reject(delivery)
        assert await store.engine.result(TENANT, "q", message_id) is None
        assert await store.engine.result(TENANT, "other", message_id) is None

    @law("Q1")
    async def test_each_queue_has_its_own(self, store: Store) -> None:
        await store.queue("a")
        await store.queue("b")
        (message_id,) = await store.publish(b"x")
        await store.ack(await store.claim_one("a"), b"of a")
        assert await store.engine.result(TENANT, "b", message_id) is None
        await store.ack(await store.claim_one("b"), b"of b")
        for queue, expected in (("a", b"of a"), ("b", b"of b")):
            found = await store.engine.result(TENANT, queue, message_id)
            assert found is not None
            assert found.result == expected

    async def test_what_is_unknown(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        with pytest.raises(UnknownQueue):
            await store.engine.result(TENANT, "nope", message_id)
        with pytest.raises(UnknownMessage):
            await store.engine.result(TENANT, "q", MessageId(message_id + 10**6))
