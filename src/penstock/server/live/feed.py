"""Live statistics: reads the queues that changed, once for all who watch.

While a tenant is watched there is one pass per second, else one in ten seconds, which keeps the
histories going. A pass reads the queues that the engine reported as changed, those whose rates
must return to zero, and queues that were never read. It stops after ``_PASS_S``; the next pass
continues. So watching costs less than one percent of a core, however many queues change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from time import perf_counter
from typing import Final

from penstock.errors import PenstockError
from penstock.server.live.board import NOTHING, Board, Deltas, Level
from penstock.server.live.histories import Histories
from penstock.storage.contract import Engine

__all__ = ["LiveStats"]

_WATCHED_S: Final = 1.0
_UNWATCHED_S: Final = 10.0
#: How much of a pass may be spent on reading.
_PASS_S: Final = 0.004
#: Queues per reading; a pass makes one at least.
_CHUNK: Final = 100
#: Between chunks of queues that were never read: ten thousand take about two seconds.
_STEP_S: Final = 0.01
#: How often the list of queues is compared: for queues that another process made or deleted.
_LIST_MS: Final = 10_000
#: Tenants with a board. Beyond that, boards without viewers are dropped.
_MAX_BOARDS: Final = 100
_SAVE_MS: Final = 300_000

_log = logging.getLogger("penstock.server")


class LiveStats:
    """The boards and histories of one server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = engine.clock
        self.histories = Histories(engine)
        self._boards: dict[str, Board] = {}
        #: Changed queues, oldest first, each with the time of the last pass before its change.
        self._changes: dict[tuple[str, str], int] = {}
        self._passed_at = engine.clock.now()
        self._saved_at = self._passed_at
        self._wake = asyncio.Event()
        self._one_pass = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def changed(self, tenant: str, queue: str) -> None:
        """Note that a queue's counts may have changed; called for every commit."""
        self._changes.setdefault((tenant, queue), self._passed_at)

    # -- running -----------------------------------------------------------------------

    def start(self) -> None:
        """Make passes from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop, and store the histories."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            await self._save()

    async def _run(self) -> None:
        while True:
            await self._pause()
            self._wake.clear()
            try:
                await self.make_pass()
                await self._read_new()
            except PenstockError as error:
                # A store that does not answer; the next pass tries again.
                _log.debug("Live statistics: %s", error)
            except Exception:  # noqa: BLE001  (viewers must not end the server)
                _log.exception("A pass of the live statistics failed.")
            if self._clock.now() - self._saved_at >= _SAVE_MS:
                await self._save()

    async def _pause(self) -> None:
        if any(board.viewers for board in self._boards.values()):
            await asyncio.sleep(_WATCHED_S)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_UNWATCHED_S):
                await self._wake.wait()

    async def _save(self) -> None:
        self._saved_at = self._clock.now()
        if self._engine.role.is_standby:
            return
        try:
            await self.histories.save()
        except PenstockError as error:
            _log.warning("The histories of the queues were not stored: %s", error)

    # -- watching ----------------------------------------------------------------------

    @contextmanager
    def watching(self, tenant: str) -> Iterator[Board]:
        """The tenant's board, kept current until the block ends."""
        board = self._board(tenant)
        board.viewers += 1
        self.start()
        if board.viewers == 1:
            self._wake.set()
        try:
            yield board
        finally:
            board.viewers -= 1

    async def level(self, tenant: str, queue: str | None) -> Level | None:
        """The counts of a queue now, or the tenant's as they were last read."""
        now = self._clock.now()
        if queue is None:
            board = self._boards.get(tenant)
            return None if board is None or board.listed_at is None else board.total(now)
        (counts,) = await self._engine.counts(tenant, (queue,))
        return None if counts is None else Level.of(counts, now)

    def _board(self, tenant: str) -> Board:
        board = self._boards.get(tenant)
        if board is None:
            if len(self._boards) >= _MAX_BOARDS:
                idle = (name for name, one in self._boards.items() if not one.viewers)
                if (oldest := next(idle, None)) is not None:
                    del self._boards[oldest]
            board = self._boards[tenant] = Board(tenant)
        return board

    # -- a pass ------------------------------------------------------------------------

    async def make_pass(self) -> None:
        """Read what has changed, and let viewers have it."""
        async with self._one_pass:
            changes, self._changes = self._changes, {}
            since, self._passed_at = self._passed_at, self._clock.now()
            by_tenant: dict[str, dict[str, int]] = {}
            for (tenant, queue), before in changes.items():
                by_tenant.setdefault(tenant, {})[queue] = before
            busy = [one.tenant for one in self._boards.values() if one.viewers or one.moving]
            until = perf_counter() + _PASS_S
            for tenant in dict.fromkeys((*busy, *by_tenant)):
                board = self._board(tenant)
                await self.histories.load(tenant)
                await self._list(board)
                await self._read(board, by_tenant.get(tenant, {}), since, until)

    async def _read_new(self) -> None:
        """Read the queues that a viewer waits for and that no pass has read, in small steps."""
        for board in list(self._boards.values()):
            while board.viewers and board.unread:
                names = list(islice(board.unread, _CHUNK))
                async with self._one_pass:
                    await self._read_chunk(board, names, dict.fromkeys(names, self._passed_at))
                    if board.has_news:
                        board.next_version()
                await asyncio.sleep(_STEP_S)

    async def _list(self, board: Board) -> None:
        now = self._passed_at
        if board.listed_at is None or not 0 <= now - board.listed_at < _LIST_MS:
            infos = await self._engine.list_queues(board.tenant)
            board.compare((info.name for info in infos), now)

    async def _read(self, board: Board, changes: dict[str, int], since: int, until: float) -> None:
        moving = dict.fromkeys(board.moving - changes.keys(), since)
        unread = dict.fromkeys(islice(board.unread, 100 * _CHUNK), since)
        wanted = {**unread, **moving, **changes}
        # What changed goes first, then rates that may have ended, then queues never read.
        names = [*changes, *moving, *(name for name in unread if name not in changes)]
        total = NOTHING
        for start in range(0, len(names), _CHUNK):
            if start and perf_counter() > until:
                for name in names[start:]:
                    if name in changes:
                        self._changes.setdefault((board.tenant, name), changes[name])
                break
            chunk = names[start : start + _CHUNK]
            total = total.plus(await self._read_chunk(board, chunk, wanted))
        if board.has_news:
            at = self._clock.now()
            if not board.unread:
                self.histories.add(board.tenant, None, since, at, board.total(at), total)
            board.next_version()

    async def _read_chunk(
        self, board: Board, names: Sequence[str], wanted: dict[str, int]
    ) -> Deltas:
        total = NOTHING
        readings = await self._engine.counts(board.tenant, names)
        at = self._clock.now()
        for name, counts in zip(names, readings, strict=True):
            deltas = board.put(name, counts, wanted[name], at)
            if counts is None:
                self.histories.forget(board.tenant, name)
            elif deltas is not None:
                total = total.plus(deltas)
                level = Level.of(counts, at)
                self.histories.add(board.tenant, name, wanted[name], at, level, deltas)
        return total
