"""One attempt at a partition: publishes its rows in chunks while more rows arrive.

Requests run in a thread, so that the next chunk is prepared while the last one is in flight. A
lane never has two chunks in flight: an attempt that sends the next chunk before it knows the
outcome of the last could publish a row twice (see ``chunks``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

from msgspec import Struct

from penstock.client import Client, ClientOptions
from penstock.errors import PipelineError
from penstock.model.message import NewMessage, PublishReply
from penstock.pipeline.format.chunks import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    Kind,
    RowSequence,
    Stored,
    stored_of,
)
from penstock.pipeline.format.read_back import entries_at
from penstock.pipeline.format.registration import BATCH_MS, Registration, is_finished
from penstock.pipeline.format.rows import Group
from penstock.pipeline.remote import Server
from penstock.sync.loop import LoopThread

__all__ = ["Attempt", "Counts"]

T = TypeVar("T")

#: Payload bytes waiting in all lanes above which every lane sends a chunk, full or not.
WAITING_BYTES: Final = 8 * CHUNK_BYTES
#: Waits for a full queue or a restarting server; then the task fails, and Spark decides. A few
#: connections are enough: lanes of many topics share them.
_OPTIONS: Final = ClientOptions(retry_ms=120_000, retry_when_full=True, max_connections=4)


class Counts(Struct):
    """The result of an attempt."""

    published: int = 0
    """Rows that this attempt published."""
    found: int = 0
    """Rows that another attempt had published before."""
    strays: int = 0
    """Rows that another attempt published and this one does not have: the input of the partition
    was not the same."""
    topics: dict[str, int] = {}
    """For a registered write, rows by topic, published by this attempt or by others."""
    skipped: dict[str, int] = {}
    """Rows by topic of a write that was finished before; they were not published."""


class Attempt:
    """Publishes the rows of a partition; ``with Attempt(…) as attempt``."""

    def __init__(
        self,
        server: Server,
        write_id: str,
        partition: int,
        chunk_rows: int = CHUNK_ROWS,
        registration: Registration | None = None,
    ) -> None:
        self._registration = registration
        #: Topics that were looked up, and whether their write was finished before.
        self._finished: dict[str, bool] = {}
        self._skipped: dict[str, int] = {}
        self._prefix = f"{write_id}/{partition}"
        self._chunk_rows = chunk_rows
        self._senders: dict[Group, _Sender] = {}
        self._loop = _Loop(server)

    def add(self, groups: Mapping[Group, Sequence[NewMessage]]) -> None:
        """Add rows, and send full chunks."""
        for group, rows in groups.items():
            if group[1] is not None and self._is_finished(group[0]):
                self._skipped[group[0]] = self._skipped.get(group[0], 0) + len(rows)
                continue
            sender = self._senders.get(group)
            if sender is None:
                sender = self._senders[group] = self._sender(*group)
            sender.add(rows)
        self._relieve()

    def finish(self) -> Counts:
        """Send the remaining rows; returns when all rows are published."""
        senders = self._senders.values()
        while not all(sender.is_done for sender in senders):
            for sender in senders:
                sender.send()
        lanes = [sender.lane for sender in senders]
        topics: dict[str, int] = {}
        for (topic, kind), sender in self._senders.items():
            if kind is not None and self._registration is not None:
                rows = sender.lane.published + sender.lane.found
                topics[topic] = topics.get(topic, 0) + rows
        return Counts(
            sum(lane.published for lane in lanes),
            sum(lane.found for lane in lanes) + sum(self._skipped.values()),
            sum(lane.strays for lane in lanes),
            topics,
            self._skipped,
        )

    def _is_finished(self, topic: str) -> bool:
        """Whether an earlier run finished the write to a topic; registers it if not."""
        registration = self._registration
        if registration is None:
            return False
        if topic not in self._finished:
            write = self._loop.start(
                lambda q: q.begin_write(
                    topic,
                    registration.write_id,
                    registration.run,
                    number=registration.number,
                    all_topics=registration.all_topics,
                )
            ).result()
            self._finished[topic] = is_finished(registration, topic, write)
        return self._finished[topic]

    def _sender(self, topic: str, kind: Kind | None) -> _Sender:
        if kind is None:
            # With an idempotency id the server itself detects duplicates.
            return _Sender(self._loop, topic, RowSequence(Kind(), self._chunk_rows), None)
        lane = RowSequence(kind, self._chunk_rows)
        return _Sender(self._loop, topic, lane, f"{self._prefix}/{topic}/{kind.name}")

    def _relieve(self) -> None:
        """Bound the memory if there are many topics with few rows each."""
        senders = self._senders.values()
        if sum(sender.lane.waiting_bytes for sender in senders) > WAITING_BYTES:
            for sender in senders:
                sender.send()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.close()


class _Sender:
    """A lane, and its one request in flight."""

    def __init__(self, loop: _Loop, topic: str, lane: RowSequence, prefix: str | None) -> None:
        self.lane = lane
        self._loop = loop
        self._topic = topic
        self._prefix = prefix
        self._under_way: Future[PublishReply] | None = None

    @property
    def is_done(self) -> bool:
        """Whether every row added so far is published."""
        return self._under_way is None and self.lane.is_empty

    def add(self, rows: Sequence[NewMessage]) -> None:
        """Add rows and send whole chunks; the last one may still be in flight."""
        self.lane.add(rows)
        while self.lane.is_full:
            self.send()

    def send(self) -> None:
        """Wait for the reply to the last chunk, then send the next, if there is one."""
        self._settle()
        if self.lane.is_empty:
            return
        chunk = self.lane.chunk()
        batch_id = None if self._prefix is None else f"{self._prefix}{self.lane.number}"
        batch_ms = None if self._prefix is None else BATCH_MS
        self._under_way = self._loop.start(
            lambda q: q.publish_batch(self._topic, chunk, batch_id=batch_id, batch_ms=batch_ms)
        )

    def _settle(self) -> None:
        if self._under_way is None:
            return
        reply = self._under_way.result()
        self._under_way = None
        if reply.repeated and self._prefix is not None:
            kind, topic = self.lane.kind, self._topic
            batch_id = f"{self._prefix}{self.lane.number}"
            reading = self._loop.start(lambda q: _read_back(q, kind, topic, batch_id, reply))
            self.lane.lost(reading.result())
        else:
            self.lane.won()


async def _read_back(
    q: Client, kind: Kind, topic: str, batch_id: str, reply: PublishReply
) -> list[Stored]:
    """Read the rows of a published chunk from the log."""
    # By batch id, because permission to publish to the topic includes reading its own batches.
    entries = await entries_at(
        lambda start, limit: q.batch_log(topic, batch_id, start, limit=limit),
        (published.offset for published in reply.messages),
    )
    if len(entries) != len(reply.messages):
        raise PipelineError(
            f"An earlier attempt has published {len(reply.messages)} rows of which the log has "
            f"only {len(entries)} left, so the rows still to publish are unknown. Keep the log for "
            "longer than a query may be stopped (log_retention).",
        )
    return [stored_of(kind, entry.message, entry.payload or b"") for entry in entries.values()]


class _Loop:
    """A client on an event loop in its own thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client: Client | None = None
        self._loop = LoopThread()

    def start(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start the call; the future gets its result."""

        async def ask() -> T:
            return await call(await self._connected())

        return self._loop.start(ask())

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await self._server.connect(_OPTIONS)
        return self._client

    def close(self) -> None:
        """Stop the thread; requests in flight are abandoned."""
        try:
            if self._client is not None:
                self._loop.start(self._client.close()).result()
        finally:
            self._loop.close()
