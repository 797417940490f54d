"""Reading ahead: bounded, in order, and over when nobody wants more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.errors import BadReply, PipelineError
from penstock.pipeline.format.streams import ahead, batches_of, from_offset, walk_cursor
from tests.pipeline.hosted import Hosted
from tests.unit.client.hosting import Answer


def batch(number: int, rows: int = 1_000) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number] * rows, pa.int64())})


def stream(*marks: str | None, rows: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch(0).schema) as writer:
        for number, mark in enumerate(marks):
            metadata = {} if mark is None else {"next_offset": mark, "cursor": mark}
            writer.write_batch(batch(number, rows), custom_metadata=metadata)
    return sink.getvalue().to_pybytes()


def test_everything_comes_in_order() -> None:
    found = ahead(lambda: map(batch, range(50)), remaining=20_000)
    assert [one.column("n")[0].as_py() for one in found] == list(range(50))


def test_no_more_waits_than_there_is_room_for() -> None:
    made = 0
    full = threading.Semaphore(0)

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal made
        for number in range(20):
            made += 1
            full.release()
            yield batch(number)

    found = ahead(source, remaining=3 * 8_000)
    next(found)
    # One is taken, three wait, and one is on its way.
    for _ in range(5):
        assert full.acquire(timeout=30)
    assert not full.acquire(timeout=0.2)
    assert made == 5
    assert len(list(found)) == 19


def test_a_batch_that_is_too_large_goes_alone() -> None:
    assert [one.num_rows for one in ahead(lambda: iter([batch(0), batch(1)]), remaining=1)] == [
        1_000
    ] * 2


def test_an_error_comes_after_what_came_before() -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield batch(0)
        raise BadReply("no more")

    found = ahead(source)
    assert next(found).num_rows == 1_000
    with pytest.raises(BadReply, match="no more"):
        next(found)


def test_whoever_has_enough_ends_it() -> None:
    ended = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        try:
            for number in range(1_000_000):
                yield batch(number)
        finally:
            ended.set()

    found = ahead(source, remaining=1)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert ended.wait(30)


def test_every_batch_says_where_to_go_on() -> None:
    found = [(one.num_rows, mark) for one, mark in batches_of(stream("5", "9"), b"next_offset")]
    assert found == [(1, "5"), (1, "9")]
    with pytest.raises(BadReply, match="next_offset"):
        list(batches_of(stream(None), b"next_offset"))
    for broken in (b"<html>", stream("5")[:200], b""):
        with pytest.raises(BadReply, match="cannot be read"):
            list(batches_of(broken, b"next_offset"))


def test_a_server_that_does_not_get_on_is_not_asked_for_ever(server: Hosted) -> None:
    from penstock.pipeline.remote import Server

    arrow = "application/vnd.apache.arrow.stream"
    with Server(server.url).open() as remote:
        server.host.fault(Answer(200, stream("3"), arrow))
        server.host.fault(Answer(200, stream("3"), arrow))
        with pytest.raises(PipelineError, match="beyond offset 3"):
            list(from_offset(remote, "/v1/log", (), 0, 10))
        server.host.fault(Answer(200, stream("x"), arrow))
        server.host.fault(Answer(200, stream("x"), arrow))
        with pytest.raises(PipelineError, match="beyond cursor x"):
            list(walk_cursor(remote, "/v1/queues/q/deliveries", ()))
        server.host.fault(Answer(200, stream("x"), arrow))
        server.host.fault(Answer(200, stream(""), arrow))
        assert len(list(walk_cursor(remote, "/v1/queues/q/deliveries", ()))) == 2
