"""The verbs without an event loop, over an embedded store."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import pytest

import penstock
from penstock import Ack, NewMessage, State, sync
from penstock.errors import BadInput, BadUrl, StaleReceipt, StoreClosed, UnknownQueue
from penstock.sync import SyncVerbs
from penstock.testing.laws import law

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def q() -> Iterator[SyncVerbs]:
    with sync.open("memory://") as verbs:
        yield verbs


def test_a_message_goes_all_the_way(q: SyncVerbs) -> None:
    q.create_queue("billing", "topic = 'orders'", max_attempts=2)
    first = q.publish("orders", {"order": 7}, headers={"amount": 250})
    reply = q.publish_batch("orders", [NewMessage(b"a"), NewMessage(b"b")])
    assert [item.duplicate for item in reply.messages] == [False, False]
    deliveries = q.claim("billing", limit=10)
    assert [item.payload for item in deliveries] == [b'{"order":7}', b"a", b"b"]
    assert q.ack(deliveries[0], b"done").state is State.DONE
    assert q.settle("billing", [Ack(deliveries[1].receipt)]).outcomes[0].ok
    assert q.reject(deliveries[2], "no").state is State.FAILED
    result = q.result("billing", first.id)
    assert result is not None
    assert result.result == b"done"
    assert q.stats("billing").done == 2
    with pytest.raises(StaleReceipt):
        q.ack(deliveries[2])


@law("E1")
def test_errors_are_the_same_and_raised_where_the_call_is(q: SyncVerbs) -> None:
    with pytest.raises(UnknownQueue):
        q.claim("nobody")
    with pytest.raises(BadInput) as caught:
        q.publish("t", b"", priority=77)
    assert caught.value.field == "priority"


def test_a_store_that_cannot_be_opened_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(BadUrl):
        sync.open("nonsense://")
    assert threading.active_count() == before


def test_a_store_on_disk_is_there_after_closing(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/store"
    with sync.open(url) as q:
        q.publish("t", b"kept")
    with sync.open(url) as q:
        assert [delivery.payload for delivery in q.claim("t")] == [b"kept"]


def test_many_threads_call_one_object(q: SyncVerbs) -> None:
    q.create_queue("all")
    with ThreadPoolExecutor(16) as pool:
        published = list(pool.map(lambda n: q.publish("t", b"%d" % n), range(400)))
    assert len({item.id for item in published}) == 400
    payloads = {delivery.payload for delivery in q.claim("all", limit=1000)}
    assert payloads == {b"%d" % n for n in range(400)}


# -- consuming ---------------------------------------------------------------------------


def test_consuming_acks_on_exit_and_nacks_an_exception(q: SyncVerbs) -> None:
    q.create_queue("jobs", max_attempts=1)
    for n in range(4):
        q.publish("jobs", b"%d" % n)
    seen = []
    with q.consume("jobs") as deliveries:
        for delivery in deliveries:
            with delivery:
                seen.append(delivery.payload)
                if delivery.payload == b"2":
                    raise ValueError("two")
                delivery.result = b"did " + delivery.payload
            if len(seen) == 4:
                break
    stats = q.stats("jobs")
    assert (stats.done, stats.failed, stats.in_flight) == (3, 1, 0)
    (failed,) = q.peek("jobs", State.FAILED).items
    assert failed.error is not None
    assert "ValueError: two" in failed.error
    result = q.result("jobs", q.claim("jobs.dlq")[0].message.id - 1)
    assert result is not None
    assert result.result == b"did 1"


@law("C1")
def test_leases_are_extended_while_a_handler_blocks(q: SyncVerbs) -> None:
    """The handler holds it for several leases, and it is still its own (C1)."""
    q.create_queue("slow", min_lease_ms=1)
    q.publish("slow", b"x")
    waited = threading.Event()
    with q.consume("slow", lease_ms=150) as deliveries:
        delivery = next(deliveries)
        with delivery:
            first = q.peek("slow", State.IN_FLIGHT).items[0].lease_deadline
            assert first is not None
            deadline = first
            while deadline < first + 300:
                waited.wait(0.02)
                (held,) = q.peek("slow", State.IN_FLIGHT).items
                assert held.lease_deadline is not None
                deadline = held.lease_deadline
            assert q.claim("slow") == []
    assert q.stats("slow").done == 1


def test_threads_share_a_consumption(q: SyncVerbs) -> None:
    q.create_queue("jobs")
    for n in range(50):
        q.publish("jobs", b"%d" % n)
    seen: list[bytes] = []

    with q.consume("jobs", max_in_flight=8) as deliveries:

        def work() -> None:
            for delivery in deliveries:
                with delivery:
                    seen.append(delivery.payload)
                if len(seen) >= 50:
                    deliveries.stop()

        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(work) for _ in range(4)]:
                future.result(timeout=30)
    assert sorted(seen) == sorted(b"%d" % n for n in range(50))


def test_batches_are_settled_together(q: SyncVerbs) -> None:
    q.create_queue("jobs", max_attempts=1)
    q.publish_batch("jobs", [NewMessage(b"%d" % n) for n in range(30)])
    seen: list[bytes] = []
    with q.consume_batches("jobs", size=10) as batches:
        for batch in batches:
            with batch:
                seen += [lease.payload for lease in batch]
                if len(seen) == 20:
                    assert batch[0].reject("no").state is State.FAILED
                    assert [lease.held for lease in batch[:2]] == [False, True]
                if len(seen) == 30:
                    assert len(batch.ack()) == batch.held + 10
            if len(seen) == 30:
                break
    assert seen == [b"%d" % n for n in range(30)]
    stats = q.stats("jobs")
    assert (stats.done, stats.failed, stats.in_flight) == (29, 1, 0)


def test_stop_ends_a_consumption_that_waits(q: SyncVerbs) -> None:
    q.create_queue("empty")
    deliveries = q.consume("empty")
    timer = threading.Timer(0.05, deliveries.stop)
    timer.start()
    assert list(deliveries) == []
    timer.join()


# -- what a loop in a thread brings -------------------------------------------------------


async def test_inside_an_event_loop_it_refuses_to_block() -> None:
    with pytest.raises(BadInput, match="inside an event loop"):
        sync.open("memory://")


async def test_a_verb_inside_an_event_loop_is_refused_and_from_a_thread_it_is_not() -> None:
    q = await asyncio.to_thread(sync.open, "memory://")
    with pytest.raises(BadInput, match="inside an event loop"):
        q.queues()
    assert await asyncio.to_thread(q.queues) == ()
    await asyncio.to_thread(q.close)


def test_after_closing_every_verb_says_so() -> None:
    q = sync.open("memory://")
    q.close()
    q.close()
    with pytest.raises(StoreClosed):
        q.queues()


def test_closing_ends_a_call_that_waits() -> None:
    q = sync.open("memory://")
    q.create_queue("empty")
    caught: list[BaseException] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        try:
            q.claim("empty", wait_ms=30_000)
        except penstock.PenstockError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    q.close()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert all(isinstance(error, StoreClosed) for error in caught)


def test_threads_that_call_while_it_closes_are_all_told() -> None:
    """Whatever the moment: each has its answer or ``StoreClosed``, and nobody waits for ever."""
    for _ in range(20):
        q = sync.open("memory://")
        barrier = threading.Barrier(5)
        answers: list[object] = []

        def call(
            q: SyncVerbs = q, barrier: threading.Barrier = barrier, answers: list[object] = answers
        ) -> None:
            barrier.wait()
            for _ in range(20):
                try:
                    answers.append(q.publish("t", b"x").id)
                except StoreClosed as error:
                    answers.append(error)

        threads = [threading.Thread(target=call) for _ in range(3)]
        threads.append(threading.Thread(target=lambda q=q, b=barrier: (b.wait(), q.close())))
        for thread in threads:
            thread.start()
        barrier.wait()
        q.close()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        assert len(answers) == 60


def test_an_interrupt_cancels_the_call(q: SyncVerbs) -> None:
    """Ctrl-C while a claim waits: a message that comes later is given to somebody else."""
    q.create_queue("jobs")
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
    # Begun inside, so that an interrupt that comes before the claim does not end all tests.
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (see above)
        timer.start()
        q.claim("jobs", wait_ms=20_000, consumer="interrupted")
    timer.join()
    q.publish("jobs", b"x")
    (delivery,) = q.claim("jobs", wait_ms=5_000, consumer="other")
    assert delivery.attempts == 1


def test_a_fork_has_to_open_its_own(q: SyncVerbs) -> None:
    with warnings.catch_warnings():
        # Newer Pythons warn of forking beside threads, which is the point here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:  # pragma: no cover  (another process)
        try:
            q.queues()
        except StoreClosed:
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(2)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert q.queues() == ()


def test_forgetting_to_close_is_told_and_leaves_no_thread() -> None:
    before = threading.active_count()
    q = sync.open("memory://")
    assert threading.active_count() > before
    opened = [q]
    del q
    with pytest.warns(ResourceWarning, match="not closed"):
        opened.clear()
    assert threading.active_count() == before


def test_the_context_of_the_thread_goes_along() -> None:
    """What a thread set, a trace for instance, holds for the verbs it calls."""
    variable: ContextVar[str] = ContextVar("variable")
    seen: list[str] = []

    async def look() -> None:
        seen.append(variable.get())

    loop = sync.loop.LoopThread()
    token = variable.set("set")
    try:
        loop.run(look)
    finally:
        variable.reset(token)
        loop.close()
    assert seen == ["set"]
