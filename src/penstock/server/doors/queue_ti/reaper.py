"""The delete reaper: deletes expired messages on a schedule, one per tenant.

A schedule is a cron expression in UTC, stored as a document. Several servers of one store may all
run it: what one has deleted, the others do not find.
"""

from __future__ import annotations

from typing import Final
from zoneinfo import ZoneInfo

from penstock.model.cron import Cron, parse_cron
from penstock.server.doors.background import Background
from penstock.server.doors.queue_ti.upkeep import reap_expired
from penstock.server.service import Service

__all__ = ["Reaper", "parse_schedule"]

_KIND: Final = "queue-ti-delete-reaper"
#: How late a schedule that another server has stored is noticed.
_LOOK_S: Final = 60.0
_UTC: Final = ZoneInfo("UTC")


def parse_schedule(text: str) -> Cron:
    """The schedule; raises ``BadInput``."""
    return parse_cron(text, _UTC)


class Reaper:
    """Runs the schedules of all tenants, from ``start`` to ``stop``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._since = 0
        self._background = Background("queue-ti-reaper", self._run)

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
        self._background.wake()

    def start(self) -> None:
        """Begin to run the schedules."""
        self._since = self._service.now()
        self._background.start()

    async def stop(self) -> None:
        """End; a run in progress is cut off between two queues."""
        await self._background.stop()

    async def run_due(self, since: int, now: int) -> int:
        """Run what was due between two times; returns how many messages were deleted."""
        deleted = 0
        for tenant, cron in await self._schedules():
            if cron.latest(since, now) is not None:
                deleted += await reap_expired(self._service.broker.for_tenant(tenant))
        return deleted

    async def _run(self) -> float:
        now = self._service.now()
        await self.run_due(self._since, now)
        self._since = now
        slots = [cron.after(now) - now for _, cron in await self._schedules()]
        return min([_LOOK_S, *(slot / 1000 for slot in slots)])

    async def _schedules(self) -> list[tuple[str, Cron]]:
        found = await self._service.broker.engine.list_documents(_KIND)
        return [(tenant, parse_schedule(value.decode())) for tenant, value in found]
