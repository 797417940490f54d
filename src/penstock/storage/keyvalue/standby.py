"""Fail-over: several servers open one store on an object store; one writes, the others stand by.

A server that stands by watches the writer record. It takes over when the writer has released the
store, has certainly ended, or was silent for a lease. Opening the store fences the old writer, so
a writer that was only slow cannot commit any more; it notices at its next commit, and stops
answering when its own lease ends.

While standing by, verbs that only read are answered from a view that lags by ``_VIEW_S`` and the
time of opening it. All other verbs raise ``NotWriter`` with the URL of the writer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from penstock.errors import CommitFailed, NotWriter, PenstockError, StoreClosed, StoreError
from penstock.storage.contract import Capabilities, Engine, EngineOptions
from penstock.storage.engine_options import Role, not_writer
from penstock.storage.keyvalue.adapters.slatedb.adapter import SlateDBAdapter
from penstock.storage.keyvalue.adapters.slatedb.conditional_put import check_bucket
from penstock.storage.keyvalue.adapters.slatedb.location import Location
from penstock.storage.keyvalue.adapters.slatedb.reader import SlateDBReader
from penstock.storage.keyvalue.adapters.slatedb.watching import Watch
from penstock.storage.keyvalue.adapters.slatedb.writer_record import WriterRecord
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.listener import Listener
from penstock.storage.shares import Shares
from penstock.storage.turns import Turns

__all__ = ["FailoverEngine", "open_view"]

#: A view older than this is replaced before it answers.
_VIEW_S: Final = 1.0
_READING: Final = frozenset(
    {
        "batch",
        "counts",
        "find",
        "get_document",
        "get_queue",
        "get_topic",
        "history",
        "identity",
        "list_documents",
        "list_queues",
        "list_topics",
        "log_end",
        "log_splits",
        "log_start",
        "log_trimmed",
        "message",
        "peek",
        "read_history",
        "read_log",
        "read_log_columns",
        "read_payloads",
        "result",
        "stats",
        "tenants",
    }
)
_WRITING: Final = frozenset(
    {
        "add_document",
        "archived",
        "assign",
        "behind",
        "cancel",
        "claim",
        "delete_document",
        "delete_queue",
        "delete_topic",
        "join",
        "leave",
        "new_epoch",
        "next_due",
        "pause",
        "publish",
        "publish_within",
        "purge",
        "put_document",
        "put_queue",
        "put_topic",
        "replay",
        "route",
        "settle",
        "settle_and_claim",
        "sweep",
    }
)
_log = logging.getLogger("penstock.storage")


async def open_view(location: Location, options: EngineOptions) -> KeyValueEngine:
    """An engine that reads the store as it is now, and refuses changes."""
    adapter = await asyncio.to_thread(SlateDBReader, location)
    return await KeyValueEngine.open(adapter, options)


def _delegate(name: str) -> Callable[..., Any]:
    async def verb(self: FailoverEngine, *args: Any, **options: Any) -> Any:
        engine = await self._engine_for(name)
        self._uses[engine] = self._uses.get(engine, 0) + 1
        try:
            return await getattr(engine, name)(*args, **options)
        except StoreClosed:
            if self._is_closed:
                raise
            # This server has stepped down meanwhile. ``StoreClosed`` would end its keepers.
            raise not_writer(self.role) from None
        finally:
            self._release(engine)

    verb.__name__ = name
    return verb


_Verbs: Any = type("_Verbs", (Engine,), {name: _delegate(name) for name in _READING | _WRITING})


class FailoverEngine(_Verbs):  # type: ignore[misc]
    """The engine of one server among several that share a store."""

    def __init__(self, location: Location, options: EngineOptions, url: str) -> None:
        self._location = location
        self._options = options
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(location)
        self._record: WriterRecord | None = None
        #: Under which this server wrote the last time.
        self._id = ""
        self._changed_at = self._loop.time()
        self._extra_s = 0.0
        self._epoch = 0
        #: How often others began to open the store since the record was renewed.
        self._openings = 0
        self._writer: KeyValueEngine | None = None
        self._view: KeyValueEngine | None = None
        self._viewed_at = 0.0
        self._viewing = asyncio.Lock()
        self._uses: dict[KeyValueEngine, int] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._lost = asyncio.Event()
        self._is_closed = False
        #: Why the store could not be watched or opened, the last time.
        self._trouble = ""
        self._listener = Listener()
        self._turns = Turns()
        self._shares = Shares(self._turns)
        self.clock = options.clock
        self.capabilities = Capabilities(
            engine="slatedb",
            durability=location.durability,
            persistent=True,
            multi_process=True,
        )
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, location: Location, options: EngineOptions, url: str) -> FailoverEngine:
        """Open as the writer if there is none, and stand by otherwise.

        A reader does neither: it answers what a server that stands by does.
        """
        self = cls(location, options, url)
        if location.reader:
            self._record = await asyncio.to_thread(self._watch.writer)
            self._task = self._loop.create_task(self._follow(), name="penstock-reader")
            return self
        await asyncio.to_thread(check_bucket, location, options.random(8).hex())
        if await self._is_vacant():
            try:
                await self._take_over(logging.INFO)
            except (NotWriter, CommitFailed) as error:
                # Another server opened it at the same moment, and fenced this one.
                _log.warning("This server stands by: %s", error.detail)
        self._task = self._loop.create_task(self._run(), name="penstock-failover")
        return self

    @property
    def role(self) -> Role:
        if self._writer is not None and not self._failure(self._writer):
            return Role("writer", self._url)
        name = "reader" if self._location.reader else "standby"
        record = self._record
        writer = None if record is None or record.is_gone else record.url
        if record is not None and record.id == self._id:
            writer = None  # Its own record, from before it stepped down.
        return Role(name, writer, self._trouble)

    @property
    def turns(self) -> Turns:
        return self._turns if self._writer is None else self._writer.turns

    @property
    def shares(self) -> Shares:
        return self._shares if self._writer is None else self._writer.shares

    @property
    def listener(self) -> Listener:
        return self._listener

    @listener.setter
    def listener(self, listener: Listener) -> None:
        self._listener = listener
        if self._writer is not None:
            self._writer.listener = listener

    async def _engine_for(self, verb: str) -> KeyValueEngine:
        """The engine that answers a verb now, or ``NotWriter``."""
        if self._is_closed:
            raise StoreClosed("The store is closed.")
        if self._writer is not None:
            return self._writer
        if verb in _READING:
            return await self._fresh_view()
        raise not_writer(self.role)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._task is not None:
            self._lost.set()
            await self._task
        for engine in (self._writer, self._view):
            if engine is not None:
                await engine.close()
        self._writer = self._view = None
        if self._closing:
            await asyncio.wait(self._closing)
        await asyncio.to_thread(self._watch.close)

    async def _follow(self) -> None:
        """Keep the URL of the writer up to date, which callers of a reader are given."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._watch.poll_s):
                    await self._lost.wait()
                return  # Closed.
            try:
                self._record = await asyncio.to_thread(self._watch.writer)
            except PenstockError as error:
                _log.warning("The writer cannot be read: %s", error.detail)

    # -- the writer's role -------------------------------------------------------------

    async def _run(self) -> None:
        while not self._is_closed:
            try:
                if self._writer is None:
                    if await self._is_vacant():
                        await self._take_over()
                elif failure := self._failure(self._writer):
                    self._step_down(failure)
                if self._writer is not None:
                    self._trouble = ""
            except PenstockError as error:
                self._trouble = error.detail
                _log.warning("The store cannot be watched or opened: %s", error.detail)
            except Exception:  # noqa: BLE001  (a panic of the binding must not end the watch)
                _log.exception("The store cannot be watched or opened.")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._watch.poll_s):
                    await self._lost.wait()
                self._lost.clear()
                if self._writer is not None and not self._is_closed:
                    self._step_down(self._failure(self._writer))

    async def _is_vacant(self) -> bool:
        """Whether the store has no writer, or one that was silent for its lease."""
        try:
            return await self._has_no_writer()
        except StoreError:
            # This server cannot reach the store; the writer may well be able to.
            self._changed_at = self._loop.time()
            raise

    async def _has_no_writer(self) -> bool:
        record = await asyncio.to_thread(self._watch.writer)
        if record is None:
            return True
        if self._record is None or record.id != self._record.id:
            self._epoch = await asyncio.to_thread(self._watch.epoch)
        if record != self._record:
            self._record, self._changed_at, self._openings = record, self._loop.time(), 0
            if record.id != self._id:
                self._trouble = ""
            self._extra_s = self._options.jitter(int(1000 * self._watch.poll_s)) / 1000
        if self._loop.time() - self._changed_at < self._patience_s(record):
            return False
        # Servers that stand by see the same silence. Opening takes a moment, and the last one to
        # open would fence the others, so it is left to the first one.
        epoch = await asyncio.to_thread(self._watch.epoch)
        if epoch == self._epoch:
            return True
        self._epoch, self._changed_at = epoch, self._loop.time()
        self._openings += 1
        return False

    def _patience_s(self, record: WriterRecord) -> float:
        """How long the record may stay as it is. Each opening doubles it: they may be slow."""
        if record.is_gone and not self._openings:
            return 0.0
        silent_ms = min(record.lease_ms << self._openings, self._location.timeout_ms)
        return max(silent_ms, record.lease_ms) / 1000 + self._extra_s

    async def _take_over(self, level: int = logging.WARNING) -> None:
        self._id = self._options.random(8).hex()
        adapter = await asyncio.to_thread(
            SlateDBAdapter,
            self._location,
            id=self._id,
            url=self._url,
            on_lost=self._on_lost,
            take_over=True,
        )
        engine = await KeyValueEngine.open(adapter, self._options)
        engine.listener = self._listener
        self.clock = engine.clock
        self._lost.clear()
        self._writer = engine
        _log.log(level, "This server writes to %s now.", self._location.name)
        for tenant in await engine.tenants():
            # Calls that waited while another server wrote may find something.
            for queue in await engine.list_queues(tenant):
                self._listener.ready(tenant, queue.name)

    def _on_lost(self) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._lost.set)

    @staticmethod
    def _failure(engine: KeyValueEngine) -> str:
        """Why the engine cannot write; empty if it can."""
        try:
            engine.check()
        except PenstockError as error:
            return error.detail
        return ""

    def _step_down(self, reason: str) -> None:
        engine, self._writer = self._writer, None
        assert engine is not None
        self._trouble = reason
        _log.warning("This server no longer writes to %s.", self._location.name)
        self._record, self._changed_at = None, self._loop.time()
        self._close_later(engine)

    # -- reading while standing by -----------------------------------------------------

    async def _fresh_view(self) -> KeyValueEngine:
        async with self._viewing:
            began = self._loop.time()
            if self._view is None or began - self._viewed_at > _VIEW_S:
                old, self._view = self._view, await open_view(self._location, self._options)
                self._viewed_at = began
                if old is not None and not self._uses.get(old):
                    self._close_later(old)
            return self._view

    def _release(self, engine: KeyValueEngine) -> None:
        """After a call: close the engine if it was replaced meanwhile, and no call uses it."""
        self._uses[engine] -= 1
        if not self._uses[engine]:
            del self._uses[engine]
            if engine is not self._view and engine is not self._writer:
                self._close_later(engine)

    def _close_later(self, engine: KeyValueEngine) -> None:
        """Close an engine without waiting for it."""

        async def close() -> None:
            with suppress(PenstockError):
                await engine.close()

        task = self._loop.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
