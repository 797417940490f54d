"""Who may do a job may repeat it: a retry needs no more grants than the first try."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import NewMessage
from penstock.errors import Forbidden
from penstock.pipeline.format.attempt import Attempt
from penstock.pipeline.format.chunks import Kind
from penstock.pipeline.format.consumer import queue_stream
from penstock.pipeline.remote import Server
from penstock.testing.laws import law
from tests.pipeline.hosted import Hosted


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Hosted]:
    """A server that asks for keys."""
    hosted = Hosted(f"rocksdb://{tmp_path}/store", auth=True).start()
    yield hosted
    hosted.stop()


def consume(server: Hosted, key: str, start: dict[str, object] | None = None) -> tuple[object, ...]:
    """Claim a batch, or take up the one that ``start`` names, and read all of its rows."""
    reader = queue_stream({"url": server.url, "credential": key, "queue": "billing"})
    first = reader.initialOffset()
    end = reader.latestOffset(first, ReadMaxRows(100)) if start is None else start
    rows = [
        bytes(value)
        for part in reader.partitions(first, end)
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]
    reader.stop()
    return end, rows


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_consumer_reads_its_batch_again(guarded: Hosted, size: int) -> None:
    """After a restart; and in its tasks, where a batch is too large to travel with them."""
    guarded.ask(lambda q: q.create_queue("billing", "topic = 'orders'"))
    wanted = [b"%d" % n * size for n in range(5)]
    for number, payload in enumerate(wanted):
        guarded.publish("orders", NewMessage(payload, key="k" if number == 3 else None))
        guarded.publish("secret", b"not yours")
    key = guarded.key("consume:billing")
    end, rows = consume(guarded, key)
    assert rows == wanted
    assert isinstance(end, dict)
    assert consume(guarded, key, end)[1] == wanted


def test_a_publisher_repeats_a_task(guarded: Hosted) -> None:
    rows = [NewMessage(b"%d" % n) for n in range(50)]
    guarded.publish("t", b"of somebody else")
    server = Server(guarded.url, guarded.key("publish:t"))
    with Attempt(server, "w/x", 0, 10) as attempt:
        attempt.add({("t", Kind()): rows[:30]})
        attempt.finish()
    with Attempt(server, "w/x", 0, 10) as attempt:
        attempt.add({("t", Kind()): rows})
        counts = attempt.finish()
    assert (counts.published, counts.found) == (20, 30)
    assert guarded.payloads("t") == {b"of somebody else": 1, **{row.payload: 1 for row in rows}}


@law("T1")
def test_only_what_is_ones_own_is_read(guarded: Hosted) -> None:
    guarded.ask(lambda q: q.create_queue("billing", "topic = 'orders'"))
    guarded.publish("orders", b"mine")
    guarded.publish("secret", b"not yours")
    guarded.ask(lambda q: q.publish_batch("t", [NewMessage(b"batch")], batch_id="b"))
    guarded.publish("t", b"of somebody else")
    with Server(guarded.url, guarded.key("consume:billing")).open() as remote:
        page = remote.ask(lambda q: q.queue_log("billing", 0))
        assert [entry.payload for entry in page.entries] == [b"mine"]
        for call in (
            lambda: remote.ask(lambda q: q.queue_log("secret", 0)),
            lambda: remote.ask(lambda q: q.batch_log("t", "b", 0)),
            lambda: remote.ask(lambda q: q.read_log(0)),
        ):
            with pytest.raises(Forbidden):
                call()
    with Server(guarded.url, guarded.key("publish:t")).open() as remote:
        page = remote.ask(lambda q: q.batch_log("t", "b", 0))
        assert [entry.payload for entry in page.entries] == [b"batch"]
        assert remote.ask(lambda q: q.batch_log("t", "unknown", 0)).entries == ()
        with pytest.raises(Forbidden):
            remote.ask(lambda q: q.batch_log("orders", "b", 0))
