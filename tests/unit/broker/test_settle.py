"""Settle: a malformed call settles nothing (E1), and a stale receipt is said out loud (S1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import pytest

import penstock
from penstock import (
    Ack,
    Broker,
    Delivery,
    Extend,
    Nack,
    NewMessage,
    Outgoing,
    Release,
    State,
    errors,
)
from penstock.errors import BadInput, BadName, StaleReceipt, TooLarge, UnknownQueue, UnknownTopic
from penstock.model.delivery import Receipt, Reject, Verdict
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

MIB: Final = 1024 * 1024
TWELVE_HOURS_MS: Final = 43_200_000
TWO_WEEKS_MS: Final = 1_209_600_000

Verb = Callable[[Broker, Delivery], Awaitable[Any]]
VERBS: Final[dict[str, Verb]] = {
    "ack": lambda q, delivery: q.ack(delivery),
    "nack": lambda q, delivery: q.nack(delivery),
    "reject": lambda q, delivery: q.reject(delivery),
    "release": lambda q, delivery: q.release(delivery),
    "extend": lambda q, delivery: q.extend(delivery, 1_000),
}


async def held(q: Broker, count: int = 1, topic: str = "orders") -> list[Delivery]:
    await q.publish_batch(topic, [NewMessage(b"%d" % n) for n in range(count)])
    return await q.claim(topic, limit=count)


# -- malformed -------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "bad, kind, field, limit",
    [
        ("ack", BadInput, "settlements", None),
        (None, BadInput, "settlements", None),
        (Ack, BadInput, "settlements", None),
        ({"receipt": "x"}, BadInput, "settlements", None),
        (Ack(5), BadInput, "receipt", None),  # type: ignore[arg-type]
        (Release(None), BadInput, "receipt", None),  # type: ignore[arg-type]
        (Extend(b"x", 1), BadInput, "receipt", None),  # type: ignore[arg-type]
        (Ack(Receipt("r"), object()), BadInput, "result", None),
        (Ack(Receipt("r"), "x" * (MIB + 1)), TooLarge, "result", MIB),
        (Ack(Receipt("r"), b"x" * (MIB + 1)), TooLarge, "result", MIB),
        (Nack(Receipt("r"), b"no"), BadInput, "error", None),  # type: ignore[arg-type]
        (Nack(Receipt("r"), ValueError()), BadInput, "error", None),  # type: ignore[arg-type]
        (Reject(Receipt("r"), 5), BadInput, "error", None),  # type: ignore[arg-type]
        (penstock.Reject("no receipt"), BadInput, "receipt", None),
        (penstock.Retry("no text", receipt=5), BadInput, "receipt", None),  # type: ignore[arg-type]
        (Nack(Receipt("r"), None, -1), BadInput, "delay_ms", TWO_WEEKS_MS),
        (Nack(Receipt("r"), None, TWO_WEEKS_MS + 1), BadInput, "delay_ms", TWO_WEEKS_MS),
        (Nack(Receipt("r"), None, True), BadInput, "delay_ms", TWO_WEEKS_MS),
        (Nack(Receipt("r"), None, 1.0), BadInput, "delay_ms", TWO_WEEKS_MS),  # type: ignore[arg-type]
        (Extend(Receipt("r"), 0), BadInput, "lease_ms", TWELVE_HOURS_MS),
        (Extend(Receipt("r"), -1), BadInput, "lease_ms", TWELVE_HOURS_MS),
        (Extend(Receipt("r"), TWELVE_HOURS_MS + 1), BadInput, "lease_ms", TWELVE_HOURS_MS),
        (Extend(Receipt("r"), True), BadInput, "lease_ms", TWELVE_HOURS_MS),
        (Release(Receipt("r"), -1), BadInput, "delay_ms", TWO_WEEKS_MS),
        (Release(Receipt("r"), TWO_WEEKS_MS + 1), BadInput, "delay_ms", TWO_WEEKS_MS),
        (Release(Receipt("r"), "5"), BadInput, "delay_ms", TWO_WEEKS_MS),  # type: ignore[arg-type]
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.parametrize("place", [0, 1])
async def test_one_malformed_settlement_settles_nothing(
    q: Broker,
    refuses: Refuses,
    bad: Any,
    kind: type[errors.PenstockError],
    field: str,
    limit: int | None,
    place: int,
) -> None:
    (delivery,) = await held(q)
    settlements: list[Any] = [Ack(delivery.receipt)]
    settlements.insert(place, bad)
    await refuses(q.settle("orders", settlements), kind, field, limit)
    assert (await q.ack(delivery)).ok


@law("E1")
async def test_none_or_too_many_settlements(q: Broker, refuses: Refuses) -> None:
    nothing: list[Any] = [[], ()]
    for empty in nothing:
        await refuses(q.settle("stock", empty), BadInput, "settlements", 1)
    many = [Ack(Receipt("r"))] * 10_001
    await refuses(q.settle("stock", many), TooLarge, "settlements", 10_000)
    reply = await q.settle("stock", many[:10_000])
    assert len(reply.outcomes) == 10_000


@law("E1")
@pytest.mark.parametrize(
    "settlements",
    [None, Ack(Receipt("r")), iter(()), "", {"a": 1}, {Ack(Receipt("r"))}],
    ids=["None", "Ack", "iterator", "text", "dict", "set"],
)
async def test_settlements_that_are_no_list_or_tuple(
    q: Broker, refuses: Refuses, settlements: Any
) -> None:
    await refuses(q.settle("stock", settlements), BadInput, "settlements")


@law("E1")
@pytest.mark.parametrize("queue", ["", "a b", None])
async def test_a_queue_that_is_not_a_name(q: Broker, refuses: Refuses, queue: Any) -> None:
    await refuses(q.settle(queue, [Ack(Receipt("r"))]), BadName, "queue", 128)


@law("E1")
async def test_a_queue_that_is_not_there(q: Broker, refuses: Refuses) -> None:
    await refuses(q.settle("nowhere", [Ack(Receipt("r"))]), UnknownQueue, "queue")


async def test_a_delay_and_a_lease_at_the_bounds(q: Broker, clock: FakeClock) -> None:
    one, two, three = await held(q, 3)
    assert (await q.nack(one, delay_ms=TWO_WEEKS_MS)).until == clock.now() + TWO_WEEKS_MS
    assert (await q.extend(two, TWELVE_HOURS_MS)).until == clock.now() + TWELVE_HOURS_MS
    assert (await q.nack(three, delay_ms=0)).state is State.AVAILABLE


async def test_retry_as_a_settlement_keeps_its_delay(q: Broker, clock: FakeClock) -> None:
    one, two = await held(q, 2)
    retries = [
        penstock.Retry("busy", receipt=one.receipt, delay_ms=7_000),
        penstock.Retry("busy", receipt=two.receipt, delay_ms=0),
    ]
    outcomes = (await q.settle("orders", retries)).outcomes
    assert [outcome.until for outcome in outcomes] == [clock.now() + 7_000, None]
    assert [outcome.state for outcome in outcomes] == [State.DELAYED, State.AVAILABLE]


@law("P3")
async def test_a_result_of_a_mebibyte(q: Broker) -> None:
    (delivery,) = await held(q)
    await q.ack(delivery, b"x" * MIB)
    result = await q.result("orders", delivery.message.id)
    assert result is not None
    assert result.result == b"x" * MIB


# -- the single verbs ------------------------------------------------------------------


async def test_ack_keeps_its_result(q: Broker, clock: FakeClock) -> None:
    one, two = await held(q, 2)
    clock.advance(5)
    outcome = await q.ack(one, b"receipt no 7")
    assert (outcome.verdict, outcome.state) == (Verdict.OK, State.DONE)
    await q.ack(two)
    with_result = await q.result("orders", one.message.id)
    without = await q.result("orders", two.message.id)
    assert with_result is not None
    assert without is not None
    assert (with_result.result, with_result.at) == (b"receipt no 7", clock.now())
    assert without.result is None


@pytest.mark.parametrize(
    "publish", [(), [Outgoing("done", [NewMessage(b"")])]], ids=["", "publish"]
)
async def test_a_result_is_stored_like_a_payload(q: Broker, publish: list[Outgoing]) -> None:
    values = ["text", {"order": 7}, bytearray(b"x"), b"bytes", None]
    await q.publish_batch("orders", [NewMessage(b"")] * len(values))
    deliveries = await q.claim("orders", limit=len(values))
    acks = [Ack(one.receipt, value) for one, value in zip(deliveries, values, strict=True)]
    await q.settle("orders", acks, publish=publish)
    results = [await q.result("orders", one.message.id) for one in deliveries]
    stored = [None if result is None else result.result for result in results]
    assert stored == [b"text", b'{"order":7}', b"x", b"bytes", None]


async def test_there_is_no_result_before_the_ack(q: Broker) -> None:
    (delivery,) = await held(q)
    assert await q.result("orders", delivery.message.id) is None


async def test_nack_waits_for_the_backoff_or_for_its_own_delay(q: Broker, clock: FakeClock) -> None:
    one, two, three = await held(q, 3)
    assert (await q.nack(one, "no")).until == clock.now() + 1_000
    assert (await q.nack(two, "no", delay_ms=7)).until == clock.now() + 7
    assert (await q.nack(three, "no", delay_ms=0)).state is State.AVAILABLE


async def test_nack_without_attempts_left_fails(q: Broker) -> None:
    await q.create_queue("orders", max_attempts=1)
    (delivery,) = await held(q)
    assert (await q.nack(delivery, "no good")).state is State.FAILED
    (failed,) = (await q.peek("orders", "failed")).items
    assert failed.error == "no good"


async def test_reject_fails_at_once(q: Broker) -> None:
    (delivery,) = await held(q)
    assert (await q.reject(delivery, "no good")).state is State.FAILED
    (dead,) = await q.claim("orders.dlq")
    assert dead.payload == delivery.payload
    assert (await q.ack(dead)).state is State.DONE


async def test_release_hands_back_and_does_not_count(q: Broker) -> None:
    await q.create_queue("orders", max_attempts=1)
    await q.publish("orders", b"")
    for _ in range(3):
        (delivery,) = await q.claim("orders")
        assert (await q.release(delivery)).state is State.AVAILABLE


async def test_extend_counts_from_now(q: Broker, clock: FakeClock) -> None:
    (delivery,) = await held(q)
    clock.advance(20_000)
    outcome = await q.extend(delivery, 15_000)
    assert (outcome.state, outcome.until) == (State.IN_FLIGHT, clock.now() + 15_000)
    clock.advance(14_999)
    assert await q.claim("orders") == []
    assert (await q.ack(delivery)).ok


@law("S1")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_on_a_lapsed_claim(
    q: Broker, refuses: Refuses, clock: FakeClock, verb: str
) -> None:
    (delivery,) = await held(q)
    clock.advance(30_000)
    (again,) = await q.claim("orders")
    error = await refuses(VERBS[verb](q, delivery), StaleReceipt, "receipt")
    assert str(delivery.message.id) in error.detail
    assert error.law == "S1"
    assert (await q.ack(again)).ok


@law("S1")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("ended", ["nack", "reject", "release"])
async def test_a_verb_after_the_end(q: Broker, refuses: Refuses, verb: str, ended: str) -> None:
    (delivery,) = await held(q)
    await VERBS[ended](q, delivery)
    await refuses(VERBS[verb](q, delivery), StaleReceipt, "receipt")


@law("S1")
@pytest.mark.parametrize("verb", ["nack", "reject", "release", "extend"])
async def test_a_verb_after_the_ack(q: Broker, refuses: Refuses, verb: str) -> None:
    (delivery,) = await held(q)
    await q.ack(delivery)
    await refuses(VERBS[verb](q, delivery), StaleReceipt, "receipt")
    assert (await q.ack(delivery)).ok


@law("S1")
@pytest.mark.parametrize("receipt", ["", "x", "é", "\ud800", "0-0-0-0", "-".join(["9" * 40] * 4)])
async def test_a_receipt_that_nobody_gave(q: Broker, refuses: Refuses, receipt: str) -> None:
    (real,) = await held(q)
    forged = Delivery(
        real.queue, Receipt(receipt), real.message, b"", 1, real.claimed_at, real.lease_deadline
    )
    for verb in VERBS.values():
        await refuses(verb(q, forged), StaleReceipt, "receipt")


@law("S1")
async def test_a_stale_receipt_aborts_nobody_else(q: Broker) -> None:
    one, two = await held(q, 2)
    await q.release(one)
    reply = await q.settle("orders", [Ack(one.receipt), Ack(two.receipt)])
    assert [item.verdict for item in reply.outcomes] == [Verdict.STALE, Verdict.OK]
    assert reply.outcomes[0].state is None


@law("Q1")
async def test_a_receipt_of_another_queue(q: Broker) -> None:
    await q.create_queue("one")
    await q.create_queue("two")
    await q.publish("orders", b"")
    (delivery,) = await q.claim("one")
    await q.claim("two")
    reply = await q.settle("two", [Ack(delivery.receipt)])
    assert [item.verdict for item in reply.outcomes] == [Verdict.STALE]
    assert (await q.stats("two")).in_flight == 1


async def test_an_error_may_hold_any_text(q: Broker) -> None:
    """It is kept for people to read; a character that cannot be kept is no reason to refuse."""
    one, two = await held(q, 2)
    await q.reject(one, "\ud800 broken")
    await q.reject(two, "x" * 10_000)
    broken, long = (await q.peek("orders", "failed")).items
    assert broken.error is not None
    assert broken.error.endswith(" broken")
    assert long.error is not None
    assert len(long.error.encode()) <= 8 * 1024


# -- with a publish --------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "outgoing, kind, field, limit",
    [
        (Outgoing("a b", [NewMessage(b"")]), BadName, "topic", 128),
        (Outgoing("next.dlq", [NewMessage(b"")]), BadName, "topic", None),
        (Outgoing("next", []), BadInput, "messages", 1),
        (Outgoing("next", None), BadInput, "messages", None),  # type: ignore[arg-type]
        (Outgoing("next", [NewMessage(b"")] * 10_001), TooLarge, "messages", 10_000),
        (Outgoing("next", [b"bytes"]), BadInput, "messages", None),  # type: ignore[list-item]
        (Outgoing("next", [NewMessage(b"", priority=10)]), BadInput, "priority", 9),
        (Outgoing("next", [NewMessage(b"x" * (MIB + 1))]), TooLarge, "payload", MIB),
        (Outgoing("next", [NewMessage(b"", delay_ms=-1)]), BadInput, "delay_ms", 0),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_bad_message_settles_nothing(
    q: Broker,
    refuses: Refuses,
    outgoing: Outgoing,
    kind: type[errors.PenstockError],
    field: str,
    limit: int | None,
) -> None:
    (delivery,) = await held(q)
    good = Outgoing("next", [NewMessage(b"good")])
    call = q.settle("orders", [Ack(delivery.receipt)], publish=[good, outgoing])
    await refuses(call, kind, field, limit)
    assert (await q.ack(delivery)).ok


@law("E1")
@pytest.mark.parametrize(
    "publish",
    [
        None,
        [5],
        [("next", [NewMessage(b"")])],
        Outgoing("next", [NewMessage(b"")]),
        iter([Outgoing("next", [NewMessage(b"")])]),
        [Outgoing("next", [NewMessage(b"")]), None],
        "",
    ],
    ids=["None", "5", "pair", "Outgoing", "iterator", "one bad", "text"],
)
async def test_something_else_to_publish(q: Broker, refuses: Refuses, publish: Any) -> None:
    (delivery,) = await held(q)
    call = q.settle("orders", [Ack(delivery.receipt)], publish=publish)
    await refuses(call, BadInput, "publish")
    assert (await q.ack(delivery)).ok


@law("E1")
async def test_too_many_topics_to_publish_to(q: Broker, refuses: Refuses) -> None:
    (delivery,) = await held(q)
    many = [Outgoing("next", [NewMessage(b"")])] * 101
    call = q.settle("orders", [Ack(delivery.receipt)], publish=many)
    await refuses(call, TooLarge, "publish", 100)
    reply = await q.settle("orders", [Ack(delivery.receipt)], publish=tuple(many[:100]))
    assert len(reply.published) == 100


@law("S3")
async def test_settled_and_published_in_one_call(q: Broker, clock: FakeClock) -> None:
    (delivery,) = await held(q)
    batches = [
        Outgoing("next", [NewMessage(b"a"), NewMessage(b"b", delay_ms=5)]),
        Outgoing("other", [NewMessage(b"c")]),
    ]
    reply = await q.settle("orders", [Ack(delivery.receipt)], publish=batches)
    assert [item.state for item in reply.outcomes] == [State.DONE]
    assert [item.id for item in reply.published] == [1, 2, 3]
    assert [item.payload for item in await q.claim("next", limit=9)] == [b"a"]
    assert (await q.message(2)).message.deliver_at == clock.now() + 5
    assert [item.payload for item in await q.claim("other", limit=9)] == [b"c"]


@law("S1")
async def test_a_stale_receipt_publishes_nothing(q: Broker) -> None:
    one, two = await held(q, 2)
    await q.release(one)
    end = await q.log_end()
    reply = await q.settle(
        "orders",
        [Ack(one.receipt), Ack(two.receipt)],
        publish=[Outgoing("next", [NewMessage(b"")])],
    )
    assert [item.verdict for item in reply.outcomes] == [Verdict.STALE, Verdict.ABORTED]
    assert reply.published == ()
    assert await q.log_end() == end
    assert (await q.ack(two)).ok


@law("S3")
@pytest.mark.parametrize("second", [Nack, Reject, Release])
async def test_one_receipt_twice_publishes_nothing(q: Broker, second: Any) -> None:
    (delivery,) = await held(q)
    reply = await q.settle(
        "orders",
        [Ack(delivery.receipt), second(delivery.receipt)],
        publish=[Outgoing("next", [NewMessage(b"")])],
    )
    assert not all(item.ok for item in reply.outcomes)
    assert reply.published == ()
    assert await q.log_end() == 1
    assert (await q.stats("orders")).in_flight == 1


@law("E1")
async def test_what_is_published_has_to_be_registered_too(strict: Broker) -> None:
    await strict.put_topic("orders")
    (delivery,) = await held(strict)
    with pytest.raises(UnknownTopic):
        await strict.settle(
            "orders",
            [Ack(delivery.receipt)],
            publish=[Outgoing("orders", [NewMessage(b"")]), Outgoing("next", [NewMessage(b"")])],
        )
    assert await strict.log_end() == 1
    await strict.put_topic("next")
    reply = await strict.settle(
        "orders", [Ack(delivery.receipt)], publish=[Outgoing("next", [NewMessage(b"")])]
    )
    assert reply.outcomes[0].ok
    assert await strict.log_end() == 2


Change = Callable[[list[Outgoing]], None]


@law("E1")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda publish: publish.__setitem__(0, Outgoing("unknown", [NewMessage(b"")])),
            id="another topic",
        ),
        pytest.param(lambda publish: publish.append(5), id="no Outgoing"),
        pytest.param(lambda publish: publish.extend(publish * 100), id="too many"),
    ],
)
async def test_what_is_published_changes_after_it_was_looked_up(
    strict: Broker, change: Change
) -> None:
    """Another task has its turn while the topics are looked up."""
    await strict.put_topic("orders")
    (delivery,) = await held(strict)
    publish = [Outgoing("orders", [NewMessage(b"")])]

    async def spoil() -> None:
        change(publish)

    _, reply, _ = await asyncio.gather(
        strict.publish("orders", b"busy"),
        strict.settle("orders", [Ack(delivery.receipt)], publish=publish),
        spoil(),
        return_exceptions=True,
    )
    topics = [entry.message.topic for entry in (await strict.read_log()).entries]
    assert set(topics) == {"orders"}
    assert len(topics) <= 3
    if isinstance(reply, BaseException):
        assert isinstance(reply, errors.PenstockError)


@law("E1")
async def test_settlements_that_change_while_the_store_is_busy(q: Broker) -> None:
    (delivery,) = await held(q)
    settlements: list[Any] = [Ack(delivery.receipt)]

    async def spoil() -> None:
        settlements.append(5)

    _, reply, _ = await asyncio.gather(
        q.publish("orders", b"busy"), q.settle("orders", settlements), spoil()
    )
    assert [item.state for item in reply.outcomes] == [State.DONE]


async def test_settle_and_claim_waits_for_the_next_delivery(q: Broker) -> None:
    await q.publish("orders", b"1")
    (first,) = await q.claim("orders")
    calling = asyncio.ensure_future(
        q.settle_and_claim("orders", [Ack(first.receipt)], wait_ms=20_000)
    )
    await asyncio.sleep(0.01)
    await q.publish("orders", b"2")
    reply = await calling
    assert reply.outcomes[0].state is State.DONE
    assert [delivery.payload for delivery in reply.deliveries] == [b"2"]


async def test_settle_and_claim_keeps_the_throughput_limit(q: Broker) -> None:
    await q.create_queue("orders", throughput_limit=2)
    await q.publish_batch("orders", [NewMessage(b"x")] * 5)
    (first,) = await q.claim("orders")
    reply = await q.settle_and_claim("orders", [Ack(first.receipt)], limit=5)
    assert reply.outcomes[0].ok
    assert len(reply.deliveries) == 1
