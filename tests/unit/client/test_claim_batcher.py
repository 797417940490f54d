"""Claims that share requests: each caller gets what it would have got alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from penstock import Ack, NewMessage
from penstock.broker import Broker
from penstock.client import Client, connect
from penstock.client.claim_batcher import ClaimBatcher, ClaimKind
from penstock.errors import BadInput, StoreClosed, UnknownQueue
from penstock.model.delivery import Delivery
from penstock.model.limits import MAX_CLAIM
from penstock.model.queue import Ordering
from penstock.testing.laws import law
from penstock.wire.bodies import ClaimBody, SettleBody
from tests.unit.client.conftest import QUICK
from tests.unit.client.hosting import Host, problem

BOUND_S = 60
LONG_MS = 30_000


async def published(q: Client, count: int, **policy: object) -> None:
    await q.create_queue("jobs", **policy)  # type: ignore[arg-type]
    messages = [NewMessage(b"%d" % n, partition_key=f"p{n % 3}") for n in range(count)]
    if messages:
        await q.publish_batch("t", messages)


def claims(host: Host) -> list[ClaimBody]:
    return [
        msgspec.msgpack.decode(seen.body, type=ClaimBody)
        for seen in host.requests
        if seen.path.endswith("/claims")
    ]


async def all_of(q: Client, count: int, wait_ms: int = 0) -> list[list[Delivery]]:
    """The answers to claims of one turn."""
    async with asyncio.timeout(BOUND_S):
        return await asyncio.gather(*(q.claim("jobs", wait_ms=wait_ms) for _ in range(count)))


def payloads(answers: Sequence[Sequence[Delivery]]) -> list[bytes]:
    return sorted(delivery.payload for found in answers for delivery in found)


async def test_claims_of_one_turn_share_a_request(q: Client, host: Host) -> None:
    await published(q, 20)
    answers = await all_of(q, 20)
    assert [len(found) for found in answers] == [1] * 20
    assert len(set(payloads(answers))) == 20
    assert [(body.limit, body.apart) for body in claims(host)] == [(20, True)]


async def test_a_lone_claim_is_sent_by_its_own_caller(q: Client, host: Host) -> None:
    await published(q, 0)
    claiming = asyncio.ensure_future(q.claim("jobs", wait_ms=LONG_MS))
    await host.arrivals(1, "/claims")
    assert not q._claims._tasks
    await q.publish("t", b"1")
    assert payloads([await claiming]) == [b"1"]
    assert [(body.limit, body.apart) for body in claims(host)] == [(1, False)]


async def test_claims_beside_another_share_a_request_too(q: Client, host: Host) -> None:
    await published(q, 0)
    first = asyncio.ensure_future(q.claim("jobs", wait_ms=LONG_MS))
    await host.arrivals(1, "/claims")
    others = asyncio.ensure_future(all_of(q, 3, wait_ms=LONG_MS))
    await host.arrivals(2, "/claims")
    await q.publish_batch("t", [NewMessage(b"%d" % n) for n in range(4)])
    assert payloads([await first, *await others]) == [b"0", b"1", b"2", b"3"]
    assert [body.limit for body in claims(host)][:2] == [1, 3]


async def test_more_claims_than_a_request_may_make(q: Client, host: Host) -> None:
    await published(q, MAX_CLAIM + 2)
    answers = await all_of(q, MAX_CLAIM + 2)
    assert len(set(payloads(answers))) == MAX_CLAIM + 2
    assert sorted(body.limit for body in claims(host)) == [1, 1, MAX_CLAIM]


@law("C1")
async def test_who_gets_nothing_is_answered_so(q: Client, host: Host) -> None:
    await published(q, 3)
    answers = await all_of(q, 10)
    assert sorted(len(found) for found in answers) == [0] * 7 + [1] * 3
    # Those that got nothing asked again, as each would have alone.
    assert [body.limit for body in claims(host)] == [10] + [1] * 7


@law("C5")
async def test_each_waits_in_a_place_of_its_own(q: Client, host: Host) -> None:
    """So whoever came later, from wherever, does not overtake those that came together."""
    await published(q, 0)
    together = asyncio.ensure_future(all_of(q, 3, wait_ms=LONG_MS))
    await host.arrivals(4, "/claims")
    async with connect(host.url, options=QUICK) as other:
        later = asyncio.ensure_future(other.claim("jobs", wait_ms=LONG_MS))
        await host.arrivals(5, "/claims")
        for number in range(3):
            await q.publish("t", b"%d" % number)
        assert payloads(await together) == [b"0", b"1", b"2"]
        assert not later.done()
        await q.publish("t", b"later")
        assert payloads([await later]) == [b"later"]
    # Together without a wait, then each for what is left of its own.
    asked = [(body.limit, body.wait_ms > 0) for body in claims(host)]
    assert asked == [(3, False)] + [(1, True)] * 4


@law("C5")
async def test_all_waits_end_when_the_time_is_over(q: Client, host: Host) -> None:
    await published(q, 0)
    first = asyncio.ensure_future(q.claim("jobs", wait_ms=LONG_MS))
    await host.arrivals(1, "/claims")
    assert await all_of(q, 3, wait_ms=0) == [[], [], []]
    assert not first.done()
    await q.publish("t", b"1")
    assert payloads([await first]) == [b"1"]


async def test_claims_of_different_kinds_are_apart(q: Client, host: Host) -> None:
    await published(q, 20)
    await asyncio.gather(
        *(q.claim("jobs", consumer=name) for name in "aab"),
        *(q.claim("jobs", lease_ms=lease_ms) for lease_ms in (5_000, 5_000, 6_000)),
        q.claim("jobs", limit=2),
        q.claim("jobs", where="true"),
    )
    assert sorted(body.limit for body in claims(host)) == [1, 1, 1, 2, 2, 2]


@law("O1")
async def test_a_run_of_a_partition_is_not_divided_among_callers(q: Client, host: Host) -> None:
    await published(q, 9, ordering=Ordering.PARTITION, partition_batch=100)
    answers = await all_of(q, 9)
    # The first delivery of each partition, as with claims that are sent alone.
    assert payloads(answers) == [b"0", b"1", b"2"]
    assert len(await q.claim("jobs", limit=9)) == 0


@law("O1")
async def test_a_settle_that_claims_apart_takes_no_run(q: Client) -> None:
    await published(q, 9, ordering=Ordering.PARTITION, partition_batch=100)
    (first,) = await q.claim("jobs")
    body = msgspec.msgpack.encode(SettleBody([Ack(first.receipt)], claim=ClaimBody(9, apart=True)))
    answer = await q._send("POST", "/v1/queues/jobs/settlements", body)
    assert len(msgspec.msgpack.decode(answer.body)["deliveries"]) == 1


@law("O1")
async def test_a_run_is_not_divided_among_callers_that_wait(
    q: Client, host: Host, broker: Broker
) -> None:
    await published(q, 0, ordering=Ordering.PARTITION)
    calls = [asyncio.ensure_future(q.claim("jobs", wait_ms=LONG_MS)) for _ in range(3)]
    await host.arrivals(4, "/claims")
    await broker.update_queue("jobs", partition_batch=100)
    messages = [NewMessage(b"%d" % n, partition_key="p") for n in range(3)]
    await broker.publish_batch("t", messages)
    waiting = set(calls)
    for number in range(3):
        async with asyncio.timeout(BOUND_S):
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        ((delivery,),) = [await call for call in ended]
        assert delivery.payload == b"%d" % number
        await q.ack(delivery)


@pytest.mark.parametrize(
    "body, field",
    [(ClaimBody(2, apart=True, wait_ms=1), "wait_ms"), (ClaimBody(0, apart=True), "limit")],
)
async def test_what_a_claim_for_several_callers_cannot_ask(
    q: Client, body: ClaimBody, field: str
) -> None:
    await published(q, 1, ordering=Ordering.PARTITION, partition_batch=100)
    with pytest.raises(BadInput) as caught:
        await q._send("POST", "/v1/queues/jobs/claims", msgspec.msgpack.encode(body))
    assert caught.value.field == field


@pytest.fixture
def may_claim(host: Host) -> asyncio.Event:
    """When set, the server begins to answer claims."""
    served, begun = host.app, asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].endswith("/claims"):
            await begun.wait()
        await served(scope, receive, send)

    host.app = slow
    return begun


@law("C5")
async def test_what_a_cancelled_caller_would_have_got_goes_to_another(
    q: Client, host: Host, may_claim: asyncio.Event
) -> None:
    await published(q, 2)
    calls = [asyncio.ensure_future(q.claim("jobs")) for _ in range(4)]
    await host.arrivals(1, "/claims")
    calls[0].cancel()
    calls[2].cancel()
    may_claim.set()
    async with asyncio.timeout(BOUND_S):
        assert payloads([await calls[1], await calls[3]]) == [b"0", b"1"]


@law("C5")
@pytest.mark.parametrize("is_closed", [False, True])
async def test_what_no_caller_wants_any_more_is_released(
    host: Host, broker: Broker, may_claim: asyncio.Event, is_closed: bool
) -> None:
    q = connect(host.url, options=QUICK)
    # A release counts as no attempt.
    await published(q, 4, max_attempts=1)
    calls = [asyncio.ensure_future(q.claim("jobs")) for _ in range(4)]
    await host.arrivals(1, "/claims")
    for call in calls[:2]:
        call.cancel()
    async with asyncio.timeout(BOUND_S):
        closing = asyncio.ensure_future(q.close() if is_closed else asyncio.sleep(0))
        await asyncio.sleep(0)
        may_claim.set()
        assert [len(await call) for call in calls[2:]] == [1, 1]
        await closing
        for _ in range(2):
            assert len(await broker.claim("jobs", wait_ms=LONG_MS)) == 1
    await q.close()


@law("C5")
async def test_an_answer_that_comes_with_the_cancellation_is_given_back(q: Client) -> None:
    await published(q, 1)
    found, given_back = await q.claim("jobs"), list[Delivery]()

    async def ask(kind: ClaimKind, limit: int, wait_ms: int) -> list[Delivery]:
        asyncio.get_running_loop().call_soon(first.cancel)
        return found

    async def give_back(queue: str, deliveries: Sequence[Delivery]) -> None:
        given_back.extend(deliveries)

    batcher = ClaimBatcher(ask, give_back)
    kind = ClaimKind("jobs", "me", None, 0)
    first = asyncio.ensure_future(batcher.claim(kind))
    second = asyncio.ensure_future(batcher.claim(kind))
    await asyncio.wait([first])
    second.cancel()
    await asyncio.wait([second])
    await batcher.drain()
    assert first.cancelled()
    assert given_back == found


async def test_the_first_of_a_turn_may_leave_before_the_request(q: Client, host: Host) -> None:
    await published(q, 4)
    calls = [asyncio.ensure_future(q.claim("jobs")) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    async with asyncio.timeout(BOUND_S):
        assert [len(await call) for call in calls[1:]] == [1, 1]
    assert [body.limit for body in claims(host)] == [2]
    alone = asyncio.ensure_future(q.claim("jobs"))
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.wait([alone])
    assert len(await q.claim("jobs")) == 1


async def test_an_error_reaches_every_caller(q: Client) -> None:
    async with asyncio.timeout(BOUND_S):
        answers = await asyncio.gather(*(q.claim("none") for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnknownQueue] * 3


async def test_an_error_of_another_kind_reaches_every_caller() -> None:
    async def ask(kind: ClaimKind, limit: int, wait_ms: int) -> list[Delivery]:
        raise UnicodeError("a label is too long")

    async def give_back(queue: str, deliveries: Sequence[Delivery]) -> None:
        raise AssertionError

    batcher = ClaimBatcher(ask, give_back)
    calls = (batcher.claim(ClaimKind("jobs", "me", None, LONG_MS)) for _ in range(3))
    async with asyncio.timeout(BOUND_S):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnicodeError] * 3
    assert not batcher._joining


async def test_a_server_that_cannot_lease_apart_is_asked_for_each(q: Client, host: Host) -> None:
    await published(q, 5)
    old = problem(BadInput("Object contains unknown field `apart`.", field="body"))
    host.fault(old, "/claims")
    answers = await all_of(q, 4)
    assert [len(found) for found in answers] == [1, 1, 1, 1]


@pytest.mark.parametrize("together", [1, 3])
async def test_closing_ends_claims_that_wait(host: Host, broker: Broker, together: int) -> None:
    q = connect(host.url, options=QUICK)
    await broker.create_queue("jobs")
    calls = [asyncio.ensure_future(q.claim("jobs", wait_ms=LONG_MS)) for _ in range(together)]
    await host.arrivals(1, "/claims")
    async with asyncio.timeout(BOUND_S):
        await q.close()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreClosed] * together
    assert not q._claims._tasks
    with pytest.raises(StoreClosed):
        await q.claim("jobs")
