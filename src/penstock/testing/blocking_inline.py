"""``penstock.testing.inline`` for tests with and without an event loop."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType

from penstock.sync import SyncVerbs
from penstock.sync.loop import LoopThread
from penstock.testing.clock import FakeClock
from penstock.testing.inline import MAX_HANDLED, Inline, inline
from penstock.worker import App, Handled

__all__ = ["AnyInline", "BlockingInline"]


class BlockingInline(SyncVerbs):
    """Blocking verbs over a store in memory, and an app whose handlers run on request."""

    def __init__(self, loop: LoopThread, verbs: Inline) -> None:
        super().__init__(loop, verbs)
        self._inline = verbs

    @property
    def clock(self) -> FakeClock:
        """The clock of the store, which only the test advances."""
        return self._inline.clock

    def run_until_idle(self, limit: int = MAX_HANDLED) -> list[Handled]:
        """Handle deliveries until none is available. Returns their outcomes, in order."""
        return self._loop.run(self._inline.run_until_idle, limit)

    def run_one(self, queue: str) -> Handled | None:
        """Handle the next delivery of one queue; None if there is none now."""
        return self._loop.run(self._inline.run_one, queue)

    def publish_periodic(self) -> None:
        """Publish the slots of periodic tasks that are due at the time of ``clock``."""
        self._loop.run(self._inline.publish_periodic)


class AnyInline:
    """Opens the store: ``with`` gives blocking verbs, ``async with`` awaitable ones."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._async: AbstractAsyncContextManager[Inline] = inline(app)
        self._blocking: BlockingInline | None = None

    def __enter__(self) -> BlockingInline:
        loop = LoopThread()
        try:
            self._blocking = BlockingInline(loop, loop.run(self._async.__aenter__))
        except BaseException:
            loop.close()
            raise
        return self._blocking

    def __exit__(self, *_: object) -> None:
        assert self._blocking is not None
        self._blocking.close()

    async def __aenter__(self) -> Inline:
        return await self._async.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._async.__aexit__(kind, error, trace)
