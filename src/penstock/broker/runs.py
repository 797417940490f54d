"""The broker's part of pipeline runs and reports: the newest of each tenant, checked (E1, T1).

A run is a document of the engine. Its kind contains the tenant and its name is the run's id, so
finding a run takes one read, and a listing never includes another tenant's. Listing runs, or making
room for a new one, reads all runs of the tenant; updating an existing run reads and writes only
that one.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from penstock.broker.scope import BrokerOptions, Scope, check_count, check_text, utf8_bytes
from penstock.errors import BadInput, StoreCorrupt, TooLarge
from penstock.model.limits import MAX_HEADER_NAME_BYTES, MAX_TIME_MS, check_name, cut_error, shown
from penstock.model.runs import (
    MAX_REPORT_BYTES,
    MAX_REPORT_PAGE_BYTES,
    MAX_RUN_VALUES,
    MAX_RUN_VALUES_BYTES,
    MAX_RUNS,
    RUN_LOST_MS,
    RUN_STATES,
    Run,
    StoredReport,
)
from penstock.storage.contract import Engine

__all__ = ["Runs", "check_listing", "check_page", "check_run"]

#: A tenant's name has no slash, so no two tenants share a kind, nor does another kind of document.
_KIND: Final = "run/"
#: The newest page of each tenant; its name is the tenant.
_REPORT_KIND: Final = "report"
_INT64: Final = range(-(2**63), 2**63)
_NUMBER_BYTES: Final = 8


class _KeptRun(Run, frozen=True, kw_only=True):
    """A run as it is stored."""

    seen_at: int | None = None
    """When the broker last heard from it, by its own clock; None: stored by an older Penstock."""


class _KeptReport(Struct, frozen=True):
    """A report as it is stored."""

    stored_at: int
    page: bytes
    """Compressed with zlib."""


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(_KeptRun)
_report_decoder: Final = msgspec.json.Decoder(_KeptReport)


class Runs(Scope):
    """The verbs on runs of pipeline jobs."""

    def __init__(self, engine: Engine, options: BrokerOptions, tenant: str) -> None:
        super().__init__(engine, options, tenant)
        #: Serializes new runs: each may remove old ones.
        self._new_runs = asyncio.Lock()

    async def put_run(self, run: Run) -> None:
        """Store a run, or an update of it; the last 1,000 are kept.

        Of more, the least recently updated are removed, so a run in progress stays.
        """
        checked = check_run(run)
        if await self._engine.get_document(self._run_kind, checked.id) is not None:
            await self._put_run(checked)
            return
        async with self._new_runs:
            others = [item for item in await self._all_runs() if item.id != checked.id]
            await self._put_run(checked)
            others.sort(key=lambda item: (item.updated_at, item.id))
            for item in others[: max(0, len(others) - MAX_RUNS + 1)]:
                await self._engine.delete_document(self._run_kind, item.id)

    async def run(self, id: str) -> Run | None:
        """The run, or None when it is not on record."""
        value = await self._engine.get_document(self._run_kind, check_name(id, "id"))
        return None if value is None else self._shown(_decode(id, value))

    async def runs(self, job: str | None = None, limit: int = 100) -> tuple[Run, ...]:
        """Runs of one job or of all, the newest first."""
        check_listing(job, limit)
        found = [item for item in await self._all_runs() if job is None or item.job == job]
        found.sort(key=lambda item: (item.started_at, item.id), reverse=True)
        return tuple(found[:limit])

    async def put_report(self, page: str) -> None:
        """Store the page of a report, for the console; it replaces the one before."""
        text = check_page(page).encode()
        # On a thread: a large page takes 50 ms.
        packed = await asyncio.to_thread(zlib.compress, text)
        value = _encode(_KeptReport(self._clock.now(), packed))
        await self._engine.put_document(_REPORT_KIND, self.tenant, value)

    async def report(self) -> StoredReport | None:
        """The newest report, or None if there is none."""
        value = await self._engine.get_document(_REPORT_KIND, self.tenant)
        if value is None:
            return None
        try:
            kept = _report_decoder.decode(value)
            page = zlib.decompress(kept.page).decode()
        except (msgspec.MsgspecError, zlib.error, ValueError) as error:
            raise StoreCorrupt("The report cannot be read.") from error
        return StoredReport(kept.stored_at, page)

    @property
    def _run_kind(self) -> str:
        return _KIND + self.tenant

    async def _put_run(self, run: Run) -> None:
        kept = _KeptRun(**asdict(run), seen_at=self._clock.now())
        await self._engine.put_document(self._run_kind, run.id, _encode(kept))

    async def _all_runs(self) -> list[Run]:
        documents = await self._engine.list_documents(self._run_kind)
        return [self._shown(_decode(name, value)) for name, value in documents]

    def _shown(self, kept: _KeptRun) -> Run:
        """The run; marked as lost if its job has not reported for too long."""
        fields = asdict(kept)
        seen_at = fields.pop("seen_at")
        heard_at = kept.updated_at if seen_at is None else seen_at
        if kept.state == "running" and self._clock.now() - heard_at > RUN_LOST_MS:
            fields["state"] = "lost"
        return Run(**fields)


def check_run(run: Run) -> Run:
    """Return the run, with its error truncated, if every field is valid."""
    if not isinstance(run, Run):
        raise BadInput("A run must be a Run.", field="run")
    check_name(run.id, "id")
    check_name(run.job, "job")
    if run.state not in RUN_STATES:
        states = ", ".join(RUN_STATES)
        raise BadInput(f"state is {shown(run.state)}; it must be one of {states}.", field="state")
    _check_time("started_at", run.started_at)
    _check_time("updated_at", run.updated_at)
    if (run.finished_at is None) != (run.state == "running"):
        raise BadInput(
            "A run has a time when it finished, unless it is running.", field="finished_at"
        )
    if run.finished_at is not None:
        _check_time("finished_at", run.finished_at)
    _check_values("progress", run.progress)
    _check_values("summary", run.summary)
    if run.report is not None:
        check_text("report", run.report, most=MAX_REPORT_BYTES)
    if run.error is None:
        return run
    if type(run.error) is not str:
        raise BadInput(f"error is {type(run.error).__name__}; it must be text.", field="error")
    return replace(run, error=cut_error(run.error))


def check_page(page: str) -> str:
    """Return the page of a report if it is text of an acceptable size."""
    check_text("page", page, least=1, most=MAX_REPORT_PAGE_BYTES)
    return page


def check_listing(job: object, limit: object) -> None:
    """Refuse arguments that no listing of runs accepts."""
    if job is not None:
        check_name(job, "job")
    check_count("limit", limit, MAX_RUNS)


def _check_time(field: str, value: object) -> None:
    if type(value) is not int or not 0 <= value <= MAX_TIME_MS:
        raise BadInput(
            f"{field} is {shown(value)}; it must be a time in epoch milliseconds, from 0 to "
            f"{MAX_TIME_MS}.",
            field=field,
            limit=MAX_TIME_MS,
        )


def _check_values(field: str, values: object) -> None:
    if type(values) is not dict:
        raise BadInput(f"{field} is {type(values).__name__}; it must be a dict.", field=field)
    if len(values) > MAX_RUN_VALUES:
        raise TooLarge(
            f"{field} has {len(values)} entries; the limit is {MAX_RUN_VALUES}.",
            field=field,
            limit=MAX_RUN_VALUES,
        )
    total = 0
    for name, value in values.items():
        check_text(field, name, least=1, most=MAX_HEADER_NAME_BYTES)
        total += utf8_bytes(field, name) + _value_bytes(field, name, value)
    if total > MAX_RUN_VALUES_BYTES:
        raise TooLarge(
            f"{field} has {total} bytes; the limit is {MAX_RUN_VALUES_BYTES}.",
            field=field,
            limit=MAX_RUN_VALUES_BYTES,
        )


def _value_bytes(field: str, name: str, value: object) -> int:
    if type(value) is str:
        return utf8_bytes(field, value)
    if type(value) is int:
        if value not in _INT64:
            raise BadInput(f"{name!r} of {field} does not fit 64 bits.", field=field)
    elif type(value) is not float:
        kind = type(value).__name__
        raise BadInput(f"{name!r} of {field} is {kind}; it must be text or a number.", field=field)
    elif not math.isfinite(value):
        # JSON cannot represent it.
        raise BadInput(f"{name!r} of {field} is {value}; it must be a number.", field=field)
    return _NUMBER_BYTES


def _decode(id: str, value: bytes) -> _KeptRun:
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreCorrupt(f"The run {id} cannot be read.") from error
