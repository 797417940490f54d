"""result: how a delivery ended, and the notifications of callers that wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import UnknownDelivery, UnknownMessage, UnknownQueue
from penstock.model.delivery import ReplaySource, Result, ResultStatus
from penstock.model.message import MessageId
from penstock.model.queue import Start
from penstock.model.states import State
from penstock.testing.conformance.harness import TENANT, Conformance, Store, msg
from penstock.testing.conformance.ready import listen
from penstock.testing.laws import law

__all__ = ["TestEnded", "TestResults"]


class TestResults(Conformance):
    """Done, failed or expired, with the result or the error."""

    @pytest.mark.parametrize("result", [None, b"", b"\x00\xff", b"x" * 100_000])
    async def test_a_result_comes_back(self, store: Store, result: bytes | None) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        delivery = await store.claim_one()
        done_at = store.clock.advance(10)
        await store.ack(delivery, result)
        store.clock.advance(10)
        assert await store.engine.result(TENANT, "q", message_id) == Result(
            message_id=message_id, status=ResultStatus.DONE, result=result, attempts=1, at=done_at
        )

    async def test_none_while_it_has_not_ended(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        assert await store.engine.result(TENANT, "q", message_id) is None
        delivery = await store.claim_one()
        assert await store.engine.result(TENANT, "q", message_id) is None
        await store.nack(delivery, "again", 1_000)
        assert await store.engine.result(TENANT, "q", message_id) is None

    async def test_a_failure_is_a_result(self, store: Store) -> None:
        await store.queue(max_attempts=2)
        (message_id,) = await store.publish(b"x")
        await store.nack(await store.claim_one(), "first", 0)
        delivery = await store.claim_one()
        failed_at = store.clock.advance(10)
        await store.nack(delivery, "second")
        store.clock.advance(10)
        failed = Result(
            message_id=message_id,
            status=ResultStatus.FAILED,
            error="second",
            attempts=2,
            at=failed_at,
        )
        assert await store.engine.result(TENANT, "q", message_id) == failed
        assert await store.engine.result(TENANT, "q.dlq", message_id) is None

    async def test_a_dead_letter_has_failed_until_it_is_acked(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.fail_one()
        failed_at = store.clock.now()
        store.clock.advance(10)
        dead = await store.claim_one("q.dlq")
        found = await store.engine.result(TENANT, "q", message_id)
        assert found is not None
        assert (found.status, found.at, found.attempts) == (ResultStatus.FAILED, failed_at, 2)
        await store.nack(dead, "worse", 50)
        found = await store.engine.result(TENANT, "q", message_id)
        assert found is not None
        assert (found.status, found.at, found.error) == (ResultStatus.FAILED, failed_at, "worse")
        store.clock.advance(50)
        await store.ack(await store.claim_one("q.dlq"), b"repaired")
        for queue in ("q", "q.dlq"):
            found = await store.engine.result(TENANT, queue, message_id)
            assert found == Result(
                message_id=message_id,
                status=ResultStatus.DONE,
                result=b"repaired",
                attempts=3,
                at=store.clock.now(),
            )

    async def test_an_expiry_is_a_result(self, store: Store) -> None:
        await store.queue()
        expires_at = store.clock.now() + 1_000
        waiting, held = await store.publish(msg(expires_at=expires_at), msg(expires_at=expires_at))
        await store.nack(await store.claim_one(), "not now", 0)
        store.clock.advance(1_000)
        assert await store.engine.result(TENANT, "q", held) is None
        await store.engine.sweep()
        for message_id, error, attempts in ((waiting, "not now", 1), (held, None, 0)):
            assert await store.engine.result(TENANT, "q", message_id) == Result(
                message_id=message_id,
                status=ResultStatus.EXPIRED,
                error=error,
                attempts=attempts,
                at=store.clock.now(),
            )

    async def test_a_replay_starts_over(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.fail_one()
        await store.engine.replay(TENANT, "q", ReplaySource.FAILED, None, 1)
        assert await store.engine.result(TENANT, "q", message_id) is None
        await store.ack(await store.claim_one(), b"ok")
        found = await store.engine.result(TENANT, "q", message_id)
        assert found is not None
        assert (found.status, found.result, found.error) == (ResultStatus.DONE, b"ok", None)

    @law("Q1")
    async def test_a_result_does_not_outlive_a_replay(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.fail_one()
        await store.ack(await store.claim_one("q.dlq"), b"old")
        await store.engine.replay(TENANT, "q", ReplaySource.LOG, None, 9)
        await store.fail_one()
        await store.ack(await store.claim_one("q.dlq"))
        for queue in ("q", "q.dlq"):
            found = await store.engine.result(TENANT, queue, message_id)
            assert found is not None
            assert found.result is None

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

    @law("E1")
    async def test_what_is_unknown(self, store: Store) -> None:
        await store.queue()
        await store.queue("other", "FALSE")
        (message_id,) = await store.publish(b"x")
        with pytest.raises(UnknownQueue):
            await store.engine.result(TENANT, "nope", message_id)
        with pytest.raises(UnknownMessage):
            await store.engine.result(TENANT, "q", MessageId(message_id + 10**6))
        for queue in ("other", "other.dlq"):
            with pytest.raises(UnknownDelivery):
                await store.engine.result(TENANT, queue, message_id)

    @law("E1")
    async def test_a_purged_delivery_is_unknown(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 1)
        with pytest.raises(UnknownDelivery):
            await store.engine.result(TENANT, "q", message_id)

    async def test_none_while_it_is_not_routed(self, store: Store) -> None:
        await store.queue()
        (message_id,) = await store.publish(b"x")
        await store.queue("late", start=Start(Start.EARLIEST))
        await store.queue("never", "FALSE", start=Start(Start.EARLIEST))
        for queue in ("late", "never"):
            assert await store.engine.result(TENANT, queue, message_id) is None
            await store.engine.route(TENANT, queue, 10)
        assert await store.engine.result(TENANT, "late", message_id) is None
        with pytest.raises(UnknownDelivery):
            await store.engine.result(TENANT, "never", message_id)


async def _nack(store: Store) -> None:
    await store.nack(await store.claim_one(), "bad")


async def _reject(store: Store) -> None:
    await store.reject(await store.claim_one(), "bad")


async def _ack(store: Store) -> None:
    await store.ack(await store.claim_one())


async def _ack_with_result(store: Store) -> None:
    await store.ack(await store.claim_one(), b"ok")


async def _ack_dead_letter(store: Store) -> None:
    await store.ack(await store.claim_one("q.dlq"))


async def _claim(store: Store) -> None:
    await store.engine.claim(TENANT, "q", "late", 1, None)


async def _sweep(store: Store) -> None:
    await store.engine.sweep()


async def _purge(store: Store) -> None:
    await store.engine.purge(TENANT, "q", State.AVAILABLE, None, 1)


#: What ends a delivery, and the state that it begins with.
_ENDS: dict[str, tuple[str, Callable[[Store], Awaitable[None]]]] = {
    "ack": ("available", _ack),
    "ack with a result": ("available", _ack_with_result),
    "ack of a dead letter": ("failed", _ack_dead_letter),
    "nack": ("available", _nack),
    "reject": ("available", _reject),
    "purge": ("available", _purge),
    "lapse at a claim": ("lapsed", _claim),
    "lapse at a sweep": ("lapsed", _sweep),
    "expiry at a claim": ("past its expiry", _claim),
    "expiry at a sweep": ("past its expiry", _sweep),
    "a lowered max_attempts": ("exhausted", _claim),
}


class TestEnded(Conformance):
    """Callers that wait for results are notified by every transition that ends the delivery."""

    @law("C5")
    @pytest.mark.parametrize("how", _ENDS)
    async def test_an_end_is_notified(self, store: Store, how: str) -> None:
        before, end = _ENDS[how]
        await store.queue(max_attempts=2 if before == "exhausted" else 1)
        await store.queue("other")
        await store.publish(msg(expires_at=store.clock.now() + 120_000))
        match before:
            case "failed":
                await store.fail_one()
            case "lapsed":
                await store.claim_one(lease_ms=1_000)
                store.clock.advance(1_000)
            case "past its expiry":
                store.clock.advance(120_000)
            case "exhausted":
                await store.nack(await store.claim_one(), "bad", 0)
                await store.queue(max_attempts=1)
        ear = listen(store)
        await end(store)
        assert "q" in ear.ended_queues()

    async def test_what_does_not_end_is_not(self, store: Store) -> None:
        await store.queue()
        ear = listen(store)
        await store.publish(b"x", b"y")
        await store.nack(await store.claim_one(), "again", 0)
        await store.release(await store.claim_one())
        assert ear.ended_queues() == set()
