"""Runs of pipeline jobs and reports over HTTP. Storing one sets a state: all may be retried."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.broker.runs import check_listing, check_page, check_run
from penstock.client.scope import Scope
from penstock.errors import UnknownRun
from penstock.model.limits import check_name
from penstock.model.runs import Run, StoredReport
from penstock.wire.bodies import ReportBody, ReportReply, RunBody, RunList
from penstock.wire.codecs import encode_msgpack

__all__ = ["Runs"]

_RUN: Final = msgspec.msgpack.Decoder(Run)
_REPORT: Final = msgspec.msgpack.Decoder(ReportReply)
_RUNS: Final = msgspec.msgpack.Decoder(RunList)


class Runs(Scope):
    """The verbs on runs of pipeline jobs."""

    async def put_run(self, run: Run) -> None:
        """Store a run, or an update of it; the last 1,000 are kept."""
        checked = check_run(run)
        body = RunBody(**{name: getattr(checked, name) for name in RunBody.__struct_fields__})
        await self._send("PUT", f"/v1/pipeline/runs/{checked.id}", encode_msgpack(body))

    async def run(self, id: str) -> Run | None:
        """The run, or None when it is not on record."""
        try:
            return await self._get(_RUN, f"/v1/pipeline/runs/{check_name(id, 'id')}")
        except UnknownRun:
            return None

    async def runs(self, job: str | None = None, limit: int = 100) -> tuple[Run, ...]:
        """Runs of one job or of all, the newest first."""
        check_listing(job, limit)
        query = (("job", job), ("limit", limit))
        return (await self._get(_RUNS, "/v1/pipeline/runs", query)).runs

    async def put_report(self, page: str) -> None:
        """Store the page of a report, for the console; it replaces the one before."""
        body = ReportBody(check_page(page))
        await self._send("PUT", "/v1/pipeline/report", encode_msgpack(body))

    async def report(self) -> StoredReport | None:
        """The newest report, or None if there is none."""
        return (await self._get(_REPORT, "/v1/pipeline/report")).report
