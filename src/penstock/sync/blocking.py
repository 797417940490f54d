"""The base of the generated classes of ``penstock.sync``.

It has the code for calls, iteration and context managers. The verbs and their signatures are
generated from ``penstock.api`` and ``penstock.consume.lease``.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from penstock.api import QueueApi
from penstock.consume.consumption import AnyConsumption
from penstock.consume.lease import Lease
from penstock.consume.lease_batch import LeaseBatch
from penstock.errors import StoreClosed
from penstock.sync.loop import LoopThread

if TYPE_CHECKING:
    from penstock.sync.lease import SyncLease
    from penstock.sync.lease_batch import SyncLeaseBatch

__all__ = [
    "BlockingLease",
    "BlockingLeaseBatch",
    "BlockingVerbs",
    "SyncBatchConsumption",
    "SyncConsumption",
]

P = ParamSpec("P")
T = TypeVar("T")


class _Blocking:
    """Has the event loop, which the generated methods run in."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    def _run(
        self, verb: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._loop.run(verb, *args, **kwargs)


class BlockingVerbs(_Blocking):
    """The verbs of an open store or client, and the event loop that runs them."""

    def __init__(self, loop: LoopThread, verbs: QueueApi) -> None:
        super().__init__(loop)
        self._verbs = verbs

    def close(self) -> None:
        """Finish the calls in progress, then disconnect."""
        if not self._loop.is_closed:
            try:
                # Another thread may be closing it too, and finish first.
                with suppress(StoreClosed):
                    self._loop.run(self._verbs.close)
            finally:
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Opening may have failed before there was a loop.
        loop: LoopThread | None = getattr(self, "_loop", None)
        if loop is not None and not loop.is_closed:
            warnings.warn(f"{self!r} was not closed.", ResourceWarning, source=self, stacklevel=1)
            loop.close()

    def run_async(self, function: Callable[[QueueApi], Coroutine[Any, Any, T]]) -> T:
        """The result of the function, called with the async verbs in their event loop."""
        return self._loop.run(function, self._verbs)

    def _iterate(
        self, verb: Callable[P, AsyncIterator[Lease]], *args: P.args, **kwargs: P.kwargs
    ) -> SyncConsumption:
        return SyncConsumption(self._loop, self._begin(verb, *args, **kwargs))

    def _iterate_batches(
        self, verb: Callable[P, AsyncIterator[LeaseBatch]], *args: P.args, **kwargs: P.kwargs
    ) -> SyncBatchConsumption:
        return SyncBatchConsumption(self._loop, self._begin(verb, *args, **kwargs))

    def _begin(
        self, verb: Callable[P, AsyncIterator[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]:
        async def begin() -> AsyncIterator[T]:
            return verb(*args, **kwargs)

        return self._loop.run(begin)


class _AnySyncConsumption(Generic[T]):
    """An endless iterator over the deliveries of one queue; it blocks while there are none.

    Several threads may iterate over it at the same time; each delivery goes to one of them.
    ``stop``, from any thread or signal handler, ends it; so does ``close``, or leaving a ``with``.
    """

    def __init__(self, loop: LoopThread, leases: AsyncIterator[T]) -> None:
        self._loop = loop
        self._leases = leases

    def __iter__(self) -> Self:
        return self

    def stop(self) -> None:
        """End the iteration: stop claiming, and release the buffered deliveries."""
        if isinstance(self._leases, AnyConsumption):
            self._loop.call_soon(self._leases.stop)

    def close(self) -> None:
        """Stop, and leave the queue. Leases that are still held are no longer extended."""
        if isinstance(self._leases, AnyConsumption) and not self._loop.is_closed:
            self._loop.run(self._leases.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> T:
        """The next item; raises at the end."""
        taken = self._loop.run(self._take)
        if taken is None:
            raise StopIteration
        return taken

    async def _take(self) -> T | None:
        try:
            return await anext(self._leases)
        except StopAsyncIteration:
            return None


class SyncConsumption(_AnySyncConsumption[Lease], Iterator["SyncLease"]):
    """Hands out one lease at a time."""

    def __next__(self) -> SyncLease:
        from penstock.sync.lease import SyncLease  # noqa: PLC0415  (a circular import)

        return SyncLease(self._loop, self._next())


class SyncBatchConsumption(_AnySyncConsumption[LeaseBatch], Iterator["SyncLeaseBatch"]):
    """Hands out many leases at a time."""

    def __next__(self) -> SyncLeaseBatch:
        from penstock.sync.lease_batch import SyncLeaseBatch  # noqa: PLC0415  (a circular import)

        return SyncLeaseBatch(self._loop, self._next())


class BlockingLease(_Blocking):
    """A lease that is extended in the background while a thread works under it.

    ::

        with lease:  # ack on exit, nack on an exception, which ends there
            charge(lease.payload)

    A thread cannot be cancelled. If the claim is lost while it works (see ``lost``), the exit
    settles nothing: another consumer may have the delivery (S1).
    """

    def __init__(self, loop: LoopThread, lease: Lease) -> None:
        super().__init__(loop)
        self._lease = lease

    @property
    def result(self) -> object:
        """The result of the ack on a clean exit."""
        return self._lease.result

    @result.setter
    def result(self, result: object) -> None:
        self._lease.result = result

    def __enter__(self) -> Self:
        self._loop.run(self._lease.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self._loop.run(self._lease.__aexit__, kind, error, trace)

    def _do(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        async def done() -> None:
            function(*args, **kwargs)

        self._loop.run(done)


class BlockingLeaseBatch(_Blocking):
    """Leases that are extended in the background while a thread works under them.

    ::

        with batch:  # ack on exit, nack on an exception, which ends there
            charge([lease.payload for lease in batch])

    Claims that are lost while it works are not settled. The exit does not wait for the answer.
    """

    def __init__(self, loop: LoopThread, batch: LeaseBatch) -> None:
        super().__init__(loop)
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[SyncLease]:
        from penstock.sync.lease import SyncLease  # noqa: PLC0415  (a circular import)

        return (SyncLease(self._loop, lease) for lease in self._batch)

    @overload
    def __getitem__(self, index: int) -> SyncLease: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[SyncLease]: ...

    def __getitem__(self, index: int | slice) -> SyncLease | Sequence[SyncLease]:
        return list(self)[index]

    def __enter__(self) -> Self:
        self._loop.run(self._batch.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self._loop.run(self._batch.__aexit__, kind, error, trace)
