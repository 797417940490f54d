"""Retries, by a transport that does what the test says; the waits are recorded, not slept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from penstock.client.calling import Answer, Calls
from penstock.client.connection import ConnectionLost
from penstock.client.http import Reply
from penstock.client.options import ClientOptions
from penstock.client.transport import Request, Transport
from penstock.errors import (
    BadReply,
    Busy,
    CommitFailed,
    PenstockError,
    QueueFull,
    SlowRequest,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreReadOnly,
    StoreTooOld,
    StoreUnavailable,
    UnknownQueue,
    Unreachable,
)
from penstock.model.queue import Backoff
from penstock.testing.laws import law
from penstock.wire.codecs import encode_json
from penstock.wire.problems import to_problem

OK = Reply(200, b"done")
UNSENT = ConnectionLost("refused", sent=False)
SENT = ConnectionLost("reset", sent=True)
HTML = b"<html>Bad gateway</html>"


def refusal(error: PenstockError) -> Reply:
    return Reply(error.status, encode_json(to_problem(error)))


class Script:
    """A transport that plays what it was given, and a jitter that waits for nothing."""

    def __init__(self, steps: Iterable[Reply | ConnectionLost | Exception]) -> None:
        self._steps = list(steps)
        self.tries = 0
        self.tried = asyncio.Event()
        self.ceilings: list[int] = []
        self.is_closed = False

    async def exchange(self, request: Request) -> Reply:
        self.tries += 1
        self.tried.set()
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, Reply):
            return step
        raise step

    async def close(self) -> None:
        self.is_closed = True

    def jitter(self, ceiling_ms: int) -> int:
        self.ceilings.append(ceiling_ms)
        return 0


def calls(script: Script, **options: Any) -> Calls:
    chosen = ClientOptions(jitter=script.jitter, **options)
    return Calls(cast("Transport", script), "http://server", chosen)


def request(*, repeatable: bool = True, accepts: int = 0) -> Request:
    return Request("POST", "/x", b"", repeatable=repeatable, accepts=accepts)


async def test_an_answer_is_an_answer() -> None:
    script = Script([OK])
    assert await calls(script).call(request()) == Answer(200, b"done", repeated=False)
    assert script.tries == 1


@pytest.mark.parametrize(
    "failure",
    [
        UNSENT,
        SENT,
        refusal(Busy("stopping", retry_after_ms=1)),
        refusal(StoreBusy("too many connections")),
        refusal(StoreClosed("stopping")),
        refusal(StoreUnavailable("opening")),
        refusal(CommitFailed("disk")),
        refusal(SlowRequest("slow")),
        Reply(502, HTML),
        Reply(503, HTML),
        Reply(504, HTML),
    ],
)
async def test_what_may_pass_is_tried_again(failure: Reply | ConnectionLost) -> None:
    script = Script([failure, failure, OK])
    assert (await calls(script).call(request())).body == b"done"
    assert script.tries == 3


@pytest.mark.parametrize(
    "failure, kind",
    [
        (refusal(UnknownQueue("none")), UnknownQueue),
        (refusal(StoreCorrupt("bits")), StoreCorrupt),
        (refusal(StoreReadOnly("a replica")), StoreReadOnly),
        (refusal(StoreTooOld("schema 1")), StoreTooOld),
        (refusal(QueueFull("full", queue="q", limit=1, retry_after_ms=5)), QueueFull),
        (Reply(500, HTML), BadReply),
        (Reply(404, HTML), BadReply),
        (Reply(301, b""), BadReply),
        (ConnectionLost("certificate", sent=False, hopeless=True), Unreachable),
    ],
)
async def test_what_does_not_pass_is_raised_at_once(
    failure: Reply | ConnectionLost, kind: type[PenstockError]
) -> None:
    script = Script([failure])
    with pytest.raises(kind):
        await calls(script).call(request())
    assert script.tries == 1


@law("P2")
@pytest.mark.parametrize("failure", [SENT, refusal(CommitFailed("disk")), Reply(502, HTML)])
async def test_what_is_not_repeatable_is_not_repeated_once_it_may_have_taken_effect(
    failure: Reply | ConnectionLost,
) -> None:
    script = Script([failure, OK])
    with pytest.raises(PenstockError):
        await calls(script).call(request(repeatable=False))
    assert script.tries == 1


@pytest.mark.parametrize("failure", [UNSENT, refusal(Busy("stopping", retry_after_ms=1))])
async def test_what_was_certainly_not_done_is_repeated_whatever_it_is(
    failure: Reply | ConnectionLost,
) -> None:
    script = Script([failure, OK])
    answer = await calls(script).call(request(repeatable=False))
    assert answer.body == b"done"
    assert not answer.repeated


async def test_the_answer_tells_that_an_earlier_try_may_have_taken_effect() -> None:
    answer = await calls(Script([UNSENT, SENT, UNSENT, OK])).call(request())
    assert answer.repeated


async def test_tries_are_bounded_by_number() -> None:
    script = Script([UNSENT])
    with pytest.raises(Unreachable, match="nothing was sent"):
        await calls(script, retries=3).call(request())
    assert script.tries == 4


async def test_tries_are_bounded_by_time() -> None:
    script = Script([SENT])
    with pytest.raises(Unreachable, match="the outcome is unknown"):
        await calls(script, retry_ms=20, backoff=Backoff(base_ms=1, max_ms=1)).call(request())
    assert script.tries > 1


async def test_zero_retries_means_once() -> None:
    for options in ({"retries": 0}, {"retry_ms": 0}):
        script = Script([UNSENT])
        with pytest.raises(Unreachable):
            await calls(script, **options).call(request())
        assert script.tries == 1


async def test_waits_double_up_to_the_ceiling() -> None:
    script = Script([UNSENT])
    options = {"retries": 6, "backoff": Backoff(base_ms=10, max_ms=100)}
    with pytest.raises(Unreachable):
        await calls(script, **options).call(request())
    assert script.ceilings == [10, 20, 40, 80, 100, 100]


async def test_the_server_is_not_asked_again_before_it_said() -> None:
    """It says a minute, the client has 30 s: there is nothing to wait for."""
    script = Script([refusal(Busy("later", retry_after_ms=60_000)), OK])
    with pytest.raises(Busy):
        await calls(script).call(request())
    assert script.tries == 1


async def test_a_proxy_may_say_when_to_come_back() -> None:
    script = Script([Reply(503, HTML, retry_after_ms=60_000), OK])
    with pytest.raises(BadReply):
        await calls(script).call(request())
    assert script.tries == 1


async def test_a_full_queue_is_tried_again_on_request() -> None:
    full = refusal(QueueFull("full", queue="q", limit=1, retry_after_ms=1))
    script = Script([full, full, OK])
    assert (await calls(script, retry_when_full=True).call(request())).body == b"done"


async def test_a_status_may_be_an_answer() -> None:
    script = Script([Reply(409, b"why")])
    assert (await calls(script).call(request(accepts=409))).body == b"why"


async def test_a_closed_client_calls_nobody() -> None:
    script = Script([OK])
    closed = calls(script)
    await closed.close()
    with pytest.raises(StoreClosed):
        await closed.call(request())
    assert script.tries == 0


async def test_closing_ends_the_wait_for_the_next_try() -> None:
    script = Script([refusal(Busy("later", retry_after_ms=25_000))])
    waiting = calls(script)
    call = asyncio.create_task(waiting.call(request()))
    await script.tried.wait()
    await waiting.close()
    async with asyncio.timeout(60):
        with pytest.raises(StoreClosed):
            await call


async def test_draining_waits_for_what_is_under_way() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(Script):
        async def exchange(self, request: Request) -> Reply:
            begun.set()
            await go.wait()
            return OK

    slow = calls(Slow([]))
    call = asyncio.create_task(slow.call(request()))
    await begun.wait()
    draining = asyncio.create_task(slow.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    go.set()
    await draining
    assert (await call).body == b"done"
