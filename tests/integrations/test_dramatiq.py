"""dramatiq on Penstock: its own workers, its own command."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout

from penstock.integrations.dramatiq import PenstockBroker, PenstockResults
from penstock.model.states import State
from tests.integrations.programs import run, running
from tests.service.serving import Served

DEFAULT = "default"


@pytest.fixture
def broker() -> Iterator[PenstockBroker]:
    made = PenstockBroker("memory://")
    made.add_middleware(Results(backend=PenstockResults(made), store_results=True))
    previous = dramatiq.broker.global_broker
    dramatiq.set_broker(made)
    try:
        yield made
    finally:
        made.close()
        dramatiq.broker.global_broker = previous


@contextmanager
def working(broker: PenstockBroker) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=20, worker_threads=2)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_a_result_is_in_the_ack(broker: PenstockBroker) -> None:
    @dramatiq.actor
    def add(left: int, right: int) -> int:
        return left + right

    sent = add.send_with_options(args=(2, 3), broker_priority=9)
    with pytest.raises(ResultMissing):
        sent.get_result()
    with pytest.raises(ResultTimeout):
        sent.get_result(block=True, timeout=1)
    with working(broker):
        assert sent.get_result(block=True, timeout=30_000) == 5
    found = broker.verbs.message(sent.options["penstock_id"])
    assert found.message.priority == 9
    assert found.message.headers == {"actor": "add"}
    assert found.deliveries[0].state is State.DONE


def test_a_retry_is_found_from_the_first_message(broker: PenstockBroker) -> None:
    attempts = []

    @dramatiq.actor(max_retries=5, min_backoff=1, max_backoff=2)
    def flaky() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError("not yet")
        return len(attempts)

    sent = flaky.send()
    with working(broker):
        broker.join(DEFAULT, timeout=30_000)
        assert sent.get_result(block=True, timeout=30_000) == 3
    assert broker.verbs.stats(DEFAULT).done == 3


def test_a_failed_message_is_a_dead_letter(broker: PenstockBroker) -> None:
    @dramatiq.actor(max_retries=0)
    def fail() -> None:
        raise ValueError("no such order")

    sent = fail.send()
    with working(broker), pytest.raises(ResultFailure, match="no such order"):
        sent.get_result(block=True, timeout=30_000)
    (dead,) = broker.verbs.claim(f"{DEFAULT}.dlq")
    assert dead.error == "ValueError: no such order"


def test_an_unknown_actor_is_a_dead_letter(broker: PenstockBroker) -> None:
    @dramatiq.actor
    def known() -> None: ...

    broker.enqueue(known.message().copy(actor_name="unknown"))
    with working(broker):
        broker.join(DEFAULT, timeout=30_000)
    assert broker.verbs.stats(DEFAULT).failed == 1


@pytest.mark.parametrize("payload", [b"no JSON", b"[1]", b'{"no": "actor"}'])
def test_what_is_no_message_is_a_dead_letter(broker: PenstockBroker, payload: bytes) -> None:
    """An error would end the consumer, and with it the leases of what workers have in hand."""

    @dramatiq.actor
    def known() -> None: ...

    broker.consume(DEFAULT).close()
    broker.verbs.publish(DEFAULT, payload)
    known.send()
    with working(broker) as worker:
        consumers = dict(worker.consumers)
        broker.join(DEFAULT, timeout=20_000)
        assert worker.consumers == consumers
    assert (broker.verbs.stats(DEFAULT).failed, broker.verbs.stats(DEFAULT).done) == (1, 1)
    (dead,) = broker.verbs.claim(f"{DEFAULT}.dlq")
    assert dead.error is not None
    assert dead.error.startswith("The message cannot be decoded: ")


def test_a_delay_waits_in_the_store(broker: PenstockBroker) -> None:
    @dramatiq.actor
    def later() -> None: ...

    later.send_with_options(delay=60_000)
    assert broker.verbs.stats(DEFAULT).delayed == 1
    broker.flush_all()
    assert broker.verbs.stats(DEFAULT).depth == 0


def test_a_worker_that_stops_returns_what_it_has_prefetched(broker: PenstockBroker) -> None:
    begun, finish = threading.Event(), threading.Event()

    @dramatiq.actor
    def slow() -> None:
        begun.set()
        finish.wait(30)

    for _ in range(10):
        slow.send()
    worker = Worker(broker, worker_timeout=20, worker_threads=1)
    worker.start()
    assert begun.wait(30)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    while worker.workers[0].running:
        pass
    finish.set()
    stopping.join(30)
    stats = broker.verbs.stats(DEFAULT)
    assert stats.in_flight == 0
    assert stats.available + stats.done == 10
    assert all(item.attempts == item.released for item in broker.verbs.peek(DEFAULT).items)


def test_a_resent_attempt_is_stored_once(broker: PenstockBroker) -> None:
    """A worker that is killed between sending a retry and the ack handles the message again."""

    @dramatiq.actor
    def task() -> None: ...

    task.send()
    consumer = broker.consume(DEFAULT, timeout=30_000)
    proxy = next(consumer)
    assert proxy is not None
    first = broker.enqueue(proxy.copy(), delay=60_000)
    second = broker.enqueue(proxy.copy(), delay=60_000)
    assert first.options["penstock_id"] == second.options["penstock_id"]
    consumer.ack(proxy)
    consumer.close()
    assert broker.verbs.stats(DEFAULT).delayed == 1


def test_the_example(served: Served, tmp_path: Path) -> None:
    arguments = ("-m", "dramatiq", "dramatiq_app", "--processes", "1", "--threads", "2")
    with running(served.url, *arguments, log=tmp_path / "worker.log"):
        assert run(served.url, "dramatiq_app.py") == "2 + 3 = 5\n"
