"""The delete reaper: deletes expired messages on a schedule, one per tenant.

A schedule is a cron expression in UTC, stored as a document. Several servers of one store may all
run it: what one has deleted, the others do not find.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final
from zoneinfo import ZoneInfo

from penstock.errors import PenstockError
from penstock.model.cron import Cron, parse_cron
from penstock.server.doors.queue_ti.upkeep import reap_expired
from penstock.server.service import Service

__all__ = ["Reaper", "parse_schedule"]

_KIND: Final = "queue-ti-delete-reaper"
#: How late a schedule that another server has stored is noticed.
_LOOK_S: Final = 60.0
_UTC: Final = ZoneInfo("UTC")

_log = logging.getLogger("penstock.server")


def parse_schedule(text: str) -> Cron:
    """The schedule; raises ``BadInput``."""
    return parse_cron(text, _UTC)


class Reaper:
    """Runs the schedules of all tenants, from ``start`` to ``stop``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def schedule(self, tenant: str) -> str:
        """The schedule of a tenant; empty if it has none."""
        value = await self._service.broker.engine.get_document(_KIND, tenant)
        return "" if value is None else value.decode()

    async def put_schedule(self, tenant: str, text: str) -> None:
        """Store the schedule of a tenant, or remove it."""
        engine = self._service.broker.engine
        if text:
            await engine.put_document(_KIND, tenant, text.encode())
        else:
            await engine.delete_document(_KIND, tenant)
        self._changed.set()

    def start(self) -> None:
        """Begin to run the schedules."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="queue-ti-reaper")

    async def stop(self) -> None:
        """End; a run in progress is cut off between two queues."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run_due(self, since: int, now: int) -> int:
        """Run what was due between two times; returns how many messages were deleted."""
        deleted = 0
        for tenant, cron in await self._schedules():
            if cron.latest(since, now) is not None:
                deleted += await reap_expired(self._service.broker.for_tenant(tenant))
        return deleted

    async def _run(self) -> None:
        since = self._service.now()
        while True:
            self._changed.clear()
            try:
                now = self._service.now()
                await self.run_due(since, now)
                since = now
                pause_s = await self._pause_s(now)
            except PenstockError as error:
                _log.warning("The delete reaper failed: %s", error)
                pause_s = _LOOK_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def _pause_s(self, now: int) -> float:
        slots = [cron.after(now) - now for _, cron in await self._schedules()]
        return min([_LOOK_S, *(slot / 1000 for slot in slots)])

    async def _schedules(self) -> list[tuple[str, Cron]]:
        found = await self._service.broker.engine.list_documents(_KIND)
        return [(tenant, parse_schedule(value.decode())) for tenant, value in found]
