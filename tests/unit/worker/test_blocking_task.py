"""Tasks sent by a program without an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from penstock import sync
from penstock.errors import BadInput, ResultTimeout, TaskFailed
from penstock.sync import SyncVerbs
from penstock.worker import App

pytestmark = pytest.mark.timeout(60)

app = App("http://nowhere")


@app.task(queue="sums")
def add(first: int, second: int = 1) -> int:
    return first + second


@pytest.fixture
def q() -> Iterator[SyncVerbs]:
    with sync.open("memory://") as verbs:
        verbs.create_queue("sums", "topic = 'sums'")
        yield verbs


def test_a_call_is_sent_and_its_result_awaited(q: SyncVerbs) -> None:
    handle = add.blocking(q).send(2, second=3)
    (delivery,) = q.claim("sums")
    assert delivery.message.id == handle.message_id
    assert delivery.message.headers == {"task": "add"}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.result, timedelta(seconds=30))
        q.ack(delivery, add(2, second=3))
        assert waiting.result() == 5
    assert add.blocking(q).handle(handle.message_id).result() == 5


def test_options_and_times(q: SyncVerbs) -> None:
    first = add.with_options(id="once", delay_ms=timedelta(hours=1)).blocking(q).send(1)
    again = add.with_options(id="once").blocking(q).send(1)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (again.message_id, again.queue) == (first.message_id, "sums")
    when = datetime(2999, 1, 1, tzinfo=UTC)
    late = add.blocking(q).send_at(when, 1)
    assert q.message(late.message_id).message.deliver_at == int(when.timestamp() * 1000)
    with pytest.raises(ResultTimeout):
        late.result(timeout_ms=1)


def test_errors_are_raised_where_the_call_is(q: SyncVerbs) -> None:
    with pytest.raises(BadInput):
        add.blocking(q).send()  # type: ignore[call-arg]
    assert q.stats("sums").available == 0
    handle = add.blocking(q).send(1)
    q.reject(q.claim("sums")[0], "broken")
    with pytest.raises(TaskFailed, match="broken"):
        handle.result()
