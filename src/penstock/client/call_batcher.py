"""Batches single publishes and settlements into shared requests.

A request costs a hundred times as much as a message in it. So single calls wait for others of
the same topic or queue, but only if waiting costs little or nothing. A batch is sent

- at the end of the turn of the event loop, if few requests of its topic or queue are in
  progress: a lone call does not wait, and calls that waited are sent when a request returns; a
  publish that is alone is sent by its own caller;
- when it is full, by number or by bytes;
- at most ``linger_ms`` after its first item.

Callers do not notice. If a batch is refused, its halves are sent, down to single items, so
each item is stored or refused on its own. A caller that is cancelled before its batch is sent
has done nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeAlias, TypeVar

from penstock.client.options import ClientOptions
from penstock.errors import BadInput, Conflict, PenstockError, QueueFull, StoreClosed

__all__ = ["CallBatcher"]

K = TypeVar("K", bound=Hashable)
I = TypeVar("I")  # noqa: E741  (an item)
A = TypeVar("A")

#: Sends a batch of one topic or queue; returns the answers in order.
Send: TypeAlias = Callable[[K, list[I]], Awaitable[Sequence[A]]]
_Single: TypeAlias = tuple[I, "asyncio.Future[A]"]

#: Errors that may concern one item; any other concerns the whole batch.
_PERSONAL = (BadInput, Conflict, QueueFull)


class CallBatcher(Generic[K, I, A]):
    """The batches that wait to be sent, by topic or queue."""

    def __init__(self, send: Send[K, I, A], options: ClientOptions) -> None:
        self._send = send
        self._options = options
        self._batches: dict[K, _TopicBatch[K, I, A]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._closing = False
        #: Callers that send an item of their own, and what is done when there are none left.
        self._alone = 0
        self._last_alone: asyncio.Future[None] | None = None

    def add(self, kind: K, item: I, size: int) -> asyncio.Future[A]:
        """A future of the answer; ``size`` is what the item adds to a request."""
        if self._closing:
            raise StoreClosed("The client is closed.")
        batch = self._batches.get(kind)
        if batch is None:
            batch = self._batches[kind] = _TopicBatch(self, kind, self._options)
        return batch.add(item, size)

    async def call(self, kind: K, item: I, size: int) -> A:
        """The answer to an item. A caller that is alone sends its item itself, without a task.

        A task, two futures and their turns of the event loop take a fifth of the client's
        processor time for a lone publish. Cancelling such a caller gives up its request.
        """
        if kind in self._batches or self._closing:
            return await self.add(kind, item, size)
        batch = self._batches[kind] = _TopicBatch(self, kind, self._options)
        self._alone += 1
        try:
            if await batch.is_joined():
                return await batch.add_first(item, size)
            batch.under_way += 1
            try:
                return (await self._send(kind, [item]))[0]
            finally:
                batch.ended()
        finally:
            self._alone -= 1
            if self._last_alone is not None and not self._alone:
                self._last_alone.set_result(None)
                self._last_alone = None

    async def drain(self) -> None:
        """Accept nothing more, send what waits, and wait for the answers."""
        self._closing = True
        if self._alone:
            self._last_alone = self._last_alone or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._last_alone)
        for batch in list(self._batches.values()):
            batch.leave()
        if self._sending:
            await asyncio.wait(self._sending)

    async def dispatch(self, kind: K, singles: list[_Single[I, A]]) -> None:
        """Send a batch and answer each of its callers."""
        singles = [single for single in singles if not single[1].done()]
        if not singles:
            return
        try:
            answers = await self._send(kind, [item for item, _ in singles])
        except PenstockError as error:
            if len(singles) == 1 or not isinstance(error, _PERSONAL):
                _fail(singles, error)
                return
            middle = len(singles) // 2
            await self.dispatch(kind, singles[:middle])
            await self.dispatch(kind, singles[middle:])
        except BaseException as error:
            _fail(singles, error)
            raise
        else:
            for (_, future), answer in zip(singles, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def start(self, batch: _TopicBatch[K, I, A], singles: list[_Single[I, A]]) -> None:
        """Send the items of a batch in the background."""
        task = batch.loop.create_task(self.dispatch(batch.kind, singles))
        # The loop itself keeps weak references only.
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        task.add_done_callback(batch.returned)

    def forget(self, kind: K) -> None:
        """Remove an empty batch: a program may use any number of topics."""
        self._batches.pop(kind, None)


class _TopicBatch(Generic[K, I, A]):
    """The items of one topic or queue that wait to be sent."""

    __slots__ = (
        "_bytes",
        "_batcher",
        "_has_leader",
        "_options",
        "_timer",
        "_waiting",
        "kind",
        "loop",
        "under_way",
    )

    def __init__(self, batcher: CallBatcher[K, I, A], kind: K, options: ClientOptions) -> None:
        self.kind = kind
        self.loop = asyncio.get_running_loop()
        self._batcher = batcher
        self._options = options
        self._waiting: list[_Single[I, A]] = []
        self._bytes = 0
        #: Requests in progress.
        self.under_way = 0
        #: Whether the first caller of this turn is waiting for others, to send them with its own.
        self._has_leader = False
        self._timer: asyncio.Handle | None = None

    def add(self, item: I, size: int) -> asyncio.Future[A]:
        options = self._options
        if self._waiting and self._bytes + size > options.max_batch_bytes:
            self.leave()
        future: asyncio.Future[A] = self.loop.create_future()
        self._waiting.append((item, future))
        self._bytes += size
        if len(self._waiting) >= options.max_batch or self._bytes >= options.max_batch_bytes:
            self.leave()
        elif self._timer is None and not self._has_leader:
            if self.under_way < options.max_under_way:
                self._timer = self.loop.call_soon(self.leave)
            else:
                self._timer = self.loop.call_later(options.linger_ms / 1000, self.leave)
        return future

    def leave(self) -> None:
        """Send the batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            singles, self._waiting, self._bytes = self._waiting, [], 0
            self.under_way += 1
            self._batcher.start(self, singles)

    async def is_joined(self) -> bool:
        """Whether others join the first caller in this turn."""
        self._has_leader = True
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._go_on()
            raise
        finally:
            self._has_leader = False
        return bool(self._waiting or self.under_way)

    def add_first(self, item: I, size: int) -> asyncio.Future[A]:
        """Send the first caller's item before those that joined it."""
        if not self._waiting or self._bytes + size > self._options.max_batch_bytes:
            return self.add(item, size)
        future: asyncio.Future[A] = self.loop.create_future()
        self._waiting.insert(0, (item, future))
        self.leave()
        return future

    def returned(self, task: asyncio.Task[None]) -> None:
        """A request was answered: send the waiting batch at the end of this turn.

        Not immediately: the callers that were just answered run first, and often call again.
        """
        if not task.cancelled():
            task.exception()  # Every caller got it.
        self.ended()

    def ended(self) -> None:
        """A request has ended."""
        self.under_way -= 1
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_soon(self.leave)
        elif not self.under_way:
            self._batcher.forget(self.kind)


def _fail(singles: Sequence[_Single[I, A]], error: BaseException) -> None:
    for _, future in singles:
        if not future.done():
            future.set_exception(error)
