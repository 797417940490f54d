"""Reads Arrow streams from a server, one after another, ahead of Spark.

The server limits each stream and states with every batch where to continue. A thread requests the
next stream while Spark processes the batches of the last. It stays ahead by a limited number of
bytes, so a partition of any size is read in the same memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from penstock.errors import BadReply, PipelineError
from penstock.pipeline.remote import Remote

__all__ = ["AHEAD_BYTES", "Query", "ahead", "batches_of", "from_offset", "walk_cursor"]

#: Names and values of a query; a value of None is omitted.
Query: TypeAlias = Sequence[tuple[str, object]]

#: Bytes of batches that may wait for Spark.
AHEAD_BYTES: Final = 32 * 1024 * 1024
#: The target size of a stream: the server's limit, so that none is cut short.
_STREAM_BYTES: Final = 16 * 1024 * 1024
#: The fewest offsets per request, so that streams do not become too small.
_LEAST_STEP: Final = 1_000
_NEXT_OFFSET: Final = b"next_offset"
_CURSOR: Final = b"cursor"


def batches_of(stream: bytes | memoryview, mark: bytes) -> Iterator[tuple[pa.RecordBatch, str]]:
    """The batches of a stream, each with the position to continue from."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            while True:
                try:
                    batch, metadata = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    return
                if metadata is None or mark not in metadata:
                    raise BadReply(f"A batch has no {mark.decode()} in its metadata.")
                yield batch, metadata[mark].decode()
    except (pa.ArrowException, OSError) as error:
        raise BadReply(f"The Arrow stream cannot be read: {error}.") from error


def from_offset(
    remote: Remote,
    path: str,
    query: Query,
    start: int,
    end: int,
    after: Callable[[int], None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """The batches between two offsets; ``after`` gets the start of each stream once it is read."""
    position = start
    step = max(_LEAST_STEP, (end - start + 1) // 2)
    while position < end:
        begun, bound = position, min(end, position + step)
        stream = _stream(remote, path, (*query, ("from", begun), ("to", bound)))
        after(begun)
        for batch, mark in batches_of(stream, _NEXT_OFFSET):
            position = int(mark)
            if batch.num_rows:
                yield batch
        if position <= begun:
            raise PipelineError(f"The server does not advance beyond offset {begun} of {path}.")
        step = max(_LEAST_STEP, (position - begun) * _STREAM_BYTES // len(stream))


def walk_cursor(remote: Remote, path: str, query: Query) -> Iterator[pa.RecordBatch]:
    """All batches, following the cursor to its end."""
    cursor = None
    while cursor != "":
        begun = cursor
        stream = _stream(remote, path, (*query, ("cursor", begun)))
        for batch, mark in batches_of(stream, _CURSOR):
            cursor = mark
            if batch.num_rows:
                yield batch
        if cursor == begun:
            raise PipelineError(f"The server does not advance beyond cursor {begun} of {path}.")


def _stream(remote: Remote, path: str, query: Query) -> memoryview:
    return remote.ask(lambda q: q.arrow(path, query))


def ahead(
    source: Callable[[], Iterator[pa.RecordBatch]], remaining: int = AHEAD_BYTES
) -> Iterator[pa.RecordBatch]:
    """The batches of ``source``; its thread stays up to ``remaining`` bytes ahead."""
    waiting = _Waiting(remaining)
    threading.Thread(target=waiting.fill, args=(source,), daemon=True).start()
    try:
        yield from waiting.taken()
    finally:
        # Spark may stop early. The thread ends after the stream that it is reading.
        waiting.give_up()


class _Waiting:
    """A bounded buffer between the reading thread and the consumer."""

    def __init__(self, remaining: int) -> None:
        self._room = remaining
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self._unwanted = False
        self._error: BaseException | None = None

    def fill(self, source: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        """Read to the end, or until the consumer gives up."""
        error: BaseException | None = None
        try:
            for batch in source():
                if not self._put(batch):
                    break
        except BaseException as raised:  # noqa: BLE001  (it is raised where the batches are taken)
            error = raised
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        """Add a batch; returns whether more is wanted. A batch above the limit goes in alone."""
        size = batch.nbytes
        with self._changed:
            self._changed.wait_for(
                lambda: self._unwanted or not self._batches or self._bytes + size <= self._room
            )
            self._batches.append(batch)
            self._bytes += size
            self._changed.notify_all()
            return not self._unwanted

    def taken(self) -> Iterator[pa.RecordBatch]:
        """The batches in order; then raises the error that ended reading, if any."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._ended)
                if not self._batches:
                    break
                batch = self._batches.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Stop the reading thread."""
        with self._changed:
            self._unwanted = True
            self._changed.notify_all()
