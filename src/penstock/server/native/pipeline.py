"""Runs of pipeline jobs and the newest report, as the jobs send them (T1).

They describe the whole tenant: storing them needs ``admin:*``, reading them ``read:*``.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.errors import BadInput, TooLarge, UnknownRun
from penstock.model.limits import shown
from penstock.model.runs import MAX_REPORT_PAGE_BYTES, Run
from penstock.server.call import Call
from penstock.server.request_parsing import Body
from penstock.server.routing import Empty, Need, Route
from penstock.wire.bodies import ReportBody, ReportReply, RunBody, RunList
from penstock.wire.codecs import JSON

__all__ = ["ROUTES"]


class RunQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The job, and how many runs."""

    job: str | None = None
    limit: int = 100


async def put_run(call: Call, query: Empty, body: RunBody) -> None:  # noqa: ARG001
    """Store a run, or update it."""
    fields = {name: getattr(body, name) for name in RunBody.__struct_fields__}
    await call.broker.put_run(Run(id=call.name, **fields))


async def get_run(call: Call, query: Empty, body: Empty) -> Run:  # noqa: ARG001
    """The run as last reported."""
    found = await call.broker.run(call.name)
    if found is None:
        raise UnknownRun(f"There is no run {shown(call.name)}.", field="id")
    return found


async def list_runs(call: Call, query: RunQuery, body: Empty) -> RunList:  # noqa: ARG001
    """Runs, most recently started first."""
    return RunList(await call.broker.runs(query.job, query.limit))


async def put_report(call: Call, query: Empty, body: ReportBody) -> None:  # noqa: ARG001
    """Store the page of a report; it replaces the one before."""
    await call.broker.put_report(body.page)


async def get_report(call: Call, query: Empty, body: Empty) -> ReportReply:  # noqa: ARG001
    """The newest report. Never as a page of its own, which could call the API as its reader."""
    return ReportReply(await call.broker.report())


_PATH: Final = "/v1/pipeline/runs/{id}"
_REPORT: Final = "/v1/pipeline/report"
#: JSON writes a control character as six.
_MAX_REPORT_BODY: Final = 6 * MAX_REPORT_PAGE_BYTES
_EVERYTHING: Final = Need("read")

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/pipeline/runs",
        verb="list_runs",
        summary="Runs of pipeline jobs, most recently started first",
        need=_EVERYTHING,
        handler=list_runs,
        query=RunQuery,
        replies=((JSON, RunList),),
        errors=(BadInput,),
        tag="pipeline",
    ),
    Route(
        method="PUT",
        path=_PATH,
        verb="put_run",
        summary="Store a run of a pipeline job, or update it",
        need=Need("admin"),
        handler=put_run,
        query=Empty,
        body=Body(RunBody),
        status=204,
        errors=(BadInput, TooLarge),
        tag="pipeline",
    ),
    Route(
        method="PUT",
        path=_REPORT,
        verb="put_report",
        summary="Store the page of a report, for the console",
        need=Need("admin"),
        handler=put_report,
        query=Empty,
        body=Body(ReportBody, most=_MAX_REPORT_BODY),
        status=204,
        errors=(BadInput, TooLarge),
        tag="pipeline",
    ),
    Route(
        method="GET",
        path=_REPORT,
        verb="get_report",
        summary="The newest report",
        need=_EVERYTHING,
        handler=get_report,
        query=Empty,
        replies=((JSON, ReportReply),),
        tag="pipeline",
    ),
    Route(
        method="GET",
        path=_PATH,
        verb="get_run",
        summary="One run of a pipeline job",
        need=_EVERYTHING,
        handler=get_run,
        query=Empty,
        replies=((JSON, Run),),
        errors=(BadInput, UnknownRun),
        tag="pipeline",
    ),
)
