"""What a handler raises, and how its delivery is settled for it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import penstock
from penstock import State
from penstock.errors import BadInput
from penstock.model.limits import MAX_ERROR_BYTES
from penstock.testing.inline import Inline, inline
from penstock.testing.laws import law
from penstock.worker import App, Context, Handled, Reject, Retry


@asynccontextmanager
async def raising(error: BaseException, **options: Any) -> AsyncIterator[tuple[Handled, Inline]]:
    """What becomes of a delivery whose handler raises the error, and where to look."""
    app = App("http://nowhere")

    @app.worker("q", **options)
    async def failing() -> None:
        raise error

    async with inline(app) as q:
        await q.publish("q", b"")
        handled = await q.run_one("q")
        assert handled is not None
        yield handled, q


async def test_retry_comes_back_after_its_delay() -> None:
    async with raising(Retry("rate limited", delay_ms=5_000)) as (handled, q):
        assert handled.state is State.DELAYED
        assert handled.error == "rate limited"
        q.clock.advance(4_999)
        assert await q.run_until_idle() == []
        q.clock.advance(1)
        (again,) = await q.run_until_idle()
        assert again.attempts == 2


async def test_retry_takes_a_timedelta() -> None:
    async with raising(Retry(delay_ms=timedelta(minutes=2))) as (handled, q):
        (delivery,) = (await q.message(handled.message_id)).deliveries
        assert delivery.at == q.clock.now() + 120_000


async def test_retry_without_a_delay_leaves_it_to_the_queue() -> None:
    async with raising(Retry("later")) as (handled, q):
        (delivery,) = (await q.message(handled.message_id)).deliveries
        assert delivery.at == q.clock.now() + 1_000


@law("C2")
async def test_a_retry_counts_as_an_attempt() -> None:
    async with raising(Retry(delay_ms=0), filter="topic = 'q'", max_attempts=3) as (handled, q):
        rest = await q.run_until_idle()
        assert [handled.state, *(item.state for item in rest)] == [
            State.AVAILABLE,
            State.AVAILABLE,
            State.FAILED,
        ]
        assert (await q.stats("q")).grants == 3


@law("E1")
@pytest.mark.parametrize(
    "options",
    [{"delay_ms": -1}, {"delay_ms": 2**40}, {"delay_ms": 1.5}, {"delay_ms": timedelta(days=15)}],
)
def test_a_retry_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Retry(**options)


@law("D1")
async def test_reject_fails_at_once_with_its_reason() -> None:
    async with raising(Reject("card stolen")) as (handled, q):
        assert (handled.state, handled.error) == (State.FAILED, "card stolen")
        (dead,) = await q.claim("q.dlq")
        assert dead.message.id == handled.message_id


async def test_any_other_exception_is_nacked_with_its_name_and_traceback() -> None:
    async with raising(LookupError("no card")) as (handled, _q):
        assert handled.state is State.DELAYED
        assert handled.error is not None
        assert handled.error.startswith("LookupError: no card\n")
        assert "in failing" in handled.error
        assert isinstance(handled.exception, LookupError)


async def test_an_error_is_bounded() -> None:
    async with raising(ValueError("ü" * 100_000)) as (handled, _q):
        assert handled.error is not None
        assert len(handled.error.encode()) <= MAX_ERROR_BYTES


async def test_what_the_handler_waited_for_was_cancelled_and_not_the_handler() -> None:
    async with raising(asyncio.CancelledError()) as (handled, _q):
        assert handled.state is State.DELAYED
        assert handled.error is not None
        assert handled.error.startswith("CancelledError")


async def test_retry_ms_replaces_the_backoff_attempt_by_attempt() -> None:
    async with raising(ValueError("x"), retry_ms=(100, 2_000)) as (handled, q):
        waits = []
        for _ in range(3):
            (delivery,) = (await q.message(handled.message_id)).deliveries
            assert delivery.at is not None
            waits.append(delivery.at - q.clock.now())
            q.clock.advance(waits[-1])
            await q.run_until_idle()
        assert waits == [100, 2_000, 2_000]


async def test_reject_on_fails_at_once() -> None:
    async with raising(KeyError("amount"), reject_on=LookupError) as (handled, _q):
        assert handled.state is State.FAILED
        assert handled.error is not None
        assert handled.error.startswith("KeyError: 'amount'")


# -- what is published with the ack ----------------------------------------------------


@law("S3")
async def test_what_a_handler_publishes_is_in_the_commit_of_its_ack() -> None:
    app = App("http://nowhere")
    outcomes = iter([ValueError("after publishing"), None])

    @app.worker("q")
    async def transform(order: dict[str, int], context: Context) -> str:
        context.publish("out", {"id": order["id"] + 1}, headers={"from": context.queue}, id="one")
        context.publish("out", "text", priority=9)
        context.publish("other", b"\xff", partition_key="p")
        if error := next(outcomes):
            raise error
        return "done"

    async with inline(app) as q:
        number = (await q.publish("q", {"id": 1})).id
        end = await q.log_end()
        (first,) = await q.run_until_idle()
        assert first.state is State.DELAYED
        assert await q.log_end() == end
        q.clock.advance(1_000)
        (second,) = await q.run_until_idle()
        assert second.state is State.DONE
        page = await q.read_log(end, payloads=True)
        shown = [
            (item.message.topic, item.payload, item.message.content_type) for item in page.entries
        ]
        assert shown == [
            ("out", b'{"id":2}', "application/json"),
            ("out", b"text", "text/plain; charset=utf-8"),
            ("other", b"\xff", None),
        ]
        assert page.entries[0].message.headers == {"from": "q"}
        result = await q.result("q", number)
        assert result is not None
        assert result.result == b"done"


async def test_a_full_queue_is_tried_again_later_and_nothing_is_settled() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def forward(context: Context) -> None:
        context.publish("out", b"")

    async with inline(app) as q:
        await q.create_queue("small", "topic = 'out'", max_depth=1)
        await q.publish("out", b"")
        await q.publish("q", b"")
        (handled,) = await q.run_until_idle()
        assert handled.state is State.DELAYED
        assert handled.error is not None
        assert handled.error.startswith("QueueFull")
        assert (await q.stats("small")).depth == 1
        for delivery in await q.claim("small"):
            await q.ack(delivery)
        q.clock.advance(60_000)
        (handled,) = await q.run_until_idle()
        assert handled.state is State.DONE


@law("E1")
async def test_what_cannot_be_published_is_an_error_of_the_handler() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def forward(context: Context) -> None:
        context.publish("out", b"", priority=99)

    @app.worker("p")
    async def misname(context: Context) -> None:
        context.publish("no such/topic", b"")

    async with inline(app) as q:
        await q.publish("q", b"")
        await q.publish("p", b"")
        first, second = await q.run_until_idle()
        assert (first.state, second.state) == (State.DELAYED, State.DELAYED)
        assert first.error is not None
        assert first.error.startswith("BadInput: priority is 99")
        assert second.error is not None
        assert second.error.startswith("BadName")


@law("S1")
async def test_a_handler_that_settles_by_itself_is_left_alone() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def own(context: Context) -> str:
        await context.lease.reject("by hand")
        return "ignored"

    async with inline(app) as q:
        number = (await q.publish("q", b"")).id
        await q.run_until_idle()
        (delivery,) = (await q.message(number)).deliveries
        assert (delivery.state, delivery.error) == (State.FAILED, "by hand")


@law("S1")
async def test_a_claim_that_is_lost_drops_what_came_of_it() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def slow(context: Context) -> None:
        context.publish("out", b"")
        await q.release(context.delivery)

    async with inline(app) as q:
        await q.publish("q", b"")
        end = await q.log_end()
        handled = await q.run_one("q")
        assert handled is not None
        assert handled.state is None
        assert await q.log_end() == end
        assert (await q.stats("q")).available == 1


async def test_a_returned_reject_is_not_a_result() -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def refusing() -> penstock.Reject:
        return penstock.Reject("card stolen")

    async with inline(app) as q:
        await q.publish("q", b"")
        handled = await q.run_one("q")
        assert handled is not None
        assert (handled.state, handled.error) == (State.FAILED, "card stolen")


def test_the_public_names_are_the_exceptions_of_workers() -> None:
    assert penstock.Reject is Reject
    assert penstock.Retry is Retry
    assert issubclass(penstock.Reject, Exception)


def test_a_retry_survives_a_process_boundary() -> None:
    sent = pickle.loads(pickle.dumps(Retry("busy", delay_ms=5, receipt="r")))
    assert (sent.reason, sent.delay_ms, sent.receipt) == ("busy", 5, "r")
