"""The supervisor: runs keepers in the background, and reports every failure.

A failed pass is logged, counted and retried after a pause that doubles up to a bound. Only
closing the store and ``stop`` end the keepers. Each keeper has a report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from penstock.broker import BrokerOptions
from penstock.errors import NotWriter, StoreClosed, StoreError
from penstock.keepers.catch_up import CatchUp
from penstock.keepers.inbox import InboxFiles
from penstock.keepers.keeper import Keeper
from penstock.keepers.sweep import Sweep
from penstock.keepers.webhooks import WebhookCalls
from penstock.model.clock import Clock
from penstock.model.reports import KeeperReport
from penstock.storage.contract import Engine

__all__ = ["Keepers"]

#: The pause after the first of several failures. Most transient errors pass within a second.
FIRST_BACKOFF_MS: Final = 1_000
#: The pause while another server writes, and does the keepers' work.
STANDBY_MS: Final = 1000
#: The longest pause: a repair by an operator takes effect within a minute.
MAX_BACKOFF_MS: Final = 60_000
#: More doublings than needed to reach the longest pause.
_MAX_DOUBLINGS: Final = 16

_log = logging.getLogger("penstock.keepers")


class Keepers:
    """The background duties of one store."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        duties: Sequence[Keeper] | None = None,
        *,
        near: int | None = None,
        options: BrokerOptions | None = None,
    ) -> None:
        """``options`` are those of the broker; without them there are no webhooks and no inbox."""
        chosen = duties
        if chosen is None:
            chosen = [Sweep(engine), CatchUp(engine, near)]
            if options is not None:
                chosen.append(WebhookCalls(engine, options))
                inbox_root = engine.capabilities.inbox_root
                if inbox_root is not None:
                    chosen.append(InboxFiles(engine, options, inbox_root))
        self._duties = [_Duty(keeper, clock) for keeper in chosen]

    def start(self) -> None:
        """Start, in the running event loop."""
        for duty in self._duties:
            duty.start()

    def behind(self) -> None:
        """Catch up now: do not wait for the next pass."""
        for duty in self._duties:
            if isinstance(duty.keeper, CatchUp):
                duty.nudge()

    def webhooks_changed(self) -> None:
        """Read the webhooks now."""
        for duty in self._duties:
            if isinstance(duty.keeper, WebhookCalls):
                duty.nudge()

    def reports(self) -> tuple[KeeperReport, ...]:
        """One report per keeper."""
        return tuple(duty.report() for duty in self._duties)

    async def stop(self) -> None:
        """Finish the passes in progress, and start no others."""
        tasks = [task for duty in self._duties if (task := duty.end()) is not None]
        if tasks:
            await asyncio.wait(tasks)
        for duty in self._duties:
            if isinstance(duty.keeper, WebhookCalls):
                await duty.keeper.close()


class _Duty:
    """One keeper, supervised."""

    def __init__(self, keeper: Keeper, clock: Clock) -> None:
        self.keeper = keeper
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        #: Set to end the pause early.
        self._nudged = asyncio.Event()
        self._runs = 0
        self._failures = 0
        self._failed_in_a_row = 0
        self._started_at: int | None = None
        self._finished_at: int | None = None
        self._work = 0
        self._last_error: str | None = None

    def start(self) -> None:
        if self._task is None:
            name = f"penstock-keeper-{self.keeper.name}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)
            self._task.add_done_callback(self._ended)

    def nudge(self) -> None:
        self._nudged.set()

    def end(self) -> asyncio.Task[None] | None:
        """Start no other pass; returns the task to wait for."""
        self._stopping = True
        self._nudged.set()
        return self._task

    def report(self) -> KeeperReport:
        return KeeperReport(
            name=self.keeper.name,
            running=self._task is not None and not self._task.done(),
            runs=self._runs,
            failures=self._failures,
            started_at=self._started_at,
            finished_at=self._finished_at,
            work=self._work,
            last_error=self._last_error,
            counters=dict(self.keeper.counters) if isinstance(self.keeper, WebhookCalls) else {},
        )

    async def _run(self) -> None:
        while not self._stopping:
            # A nudge from now on is for the pass after this one.
            self._nudged.clear()
            try:
                pause_ms = await self._pass()
            except StoreClosed:
                return
            if pause_ms:
                await self._pause(pause_ms)
            else:
                await asyncio.sleep(0)

    async def _pass(self) -> int:
        """Do one pass; returns how long to pause after it."""
        self._started_at = self._clock.now()
        try:
            done = await self.keeper.run()
        except StoreClosed:
            raise
        except NotWriter:
            self._over(0)
            return STANDBY_MS
        except Exception as error:  # noqa: BLE001  (the duty survives any error)
            self._over(0)
            return self._failed(error)
        self._over(done.work)
        if self._failed_in_a_row:
            _log.info("Keeper %s has recovered.", self.keeper.name)
            self._failed_in_a_row = 0
        return 0 if done.more else self.keeper.every_ms

    def _over(self, work: int) -> None:
        self._runs += 1
        self._work = work
        self._finished_at = self._clock.now()

    def _failed(self, error: Exception) -> int:
        """Count and log a failure; returns how long to pause."""
        doublings = min(self._failed_in_a_row, _MAX_DOUBLINGS)
        pause_ms = min(FIRST_BACKOFF_MS << doublings, MAX_BACKOFF_MS)
        self._failures += 1
        self._failed_in_a_row += 1
        self._last_error = f"{type(error).__name__}: {error}"
        _log.error(
            "Keeper %s failed; it is retried in %d ms: %s",
            self.keeper.name,
            pause_ms,
            error,
            # A store that is busy or full is no defect of the keeper.
            exc_info=None if isinstance(error, StoreError) else error,
        )
        return pause_ms

    async def _pause(self, ms: int) -> None:
        """Wait for ``ms`` milliseconds, or until nudged."""
        alarm = self._clock.call_at(self._clock.now() + ms, self._nudged.set)
        try:
            await self._nudged.wait()
        finally:
            alarm.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Log the end of the task now: it is not awaited before the store is closed."""
        if task.cancelled():
            if not self._stopping:
                _log.warning("Keeper %s was cancelled.", self.keeper.name)
        elif (error := task.exception()) is not None:
            _log.critical("Keeper %s has died.", self.keeper.name, exc_info=error)
