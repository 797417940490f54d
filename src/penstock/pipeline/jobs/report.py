"""``report``: writes a page about a period, and the tables behind it.

It covers the store and, if there is one, the lake: the lake up to its end, the store above it. A
lake of another store is refused. Each table is one Spark job, whose result is small.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.errors import BadInput, TooLarge, UnknownRoute
from penstock.model.identity import check_position, check_store
from penstock.model.limits import MAX_NAME, check_name
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.jobs.job import run_job
from penstock.pipeline.lake.files import Files, open_files
from penstock.pipeline.lake.histories import merged
from penstock.pipeline.lake.layout import HISTORY, MESSAGES
from penstock.pipeline.lake.ownership import check_last, require_lake, store_of
from penstock.pipeline.lake.reader import read_lake
from penstock.pipeline.lake.s3_location import below_lake, public_name
from penstock.pipeline.report.collect import collect_figures
from penstock.pipeline.report.figures import Figures, QueueNow, Row
from penstock.pipeline.report.page import make_page
from penstock.pipeline.report.periods import DAY_S, Period, period_of
from penstock.pipeline.report.tables import make_tables, with_claims
from penstock.pipeline.report.tenants import TenantReport, make_tenants_page, tenants_table
from penstock.pipeline.tables import read_table
from penstock.pipeline.twins import only_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ALL", "DAY_S", "report"]

#: The period of a report about everything.
ALL: Final = "all"
_PAGE: Final = "index.html"
#: The folder below the lake for reports without an output of their own.
_FOLDER: Final = "reports"
#: Stands for the tenant's name in the path of a lake.
_TENANT: Final = "{tenant}"
_LOG_COLUMNS: Final = ("offset", "topic", "timestamp", "size")
_HISTORY_COLUMNS: Final = ("id", "queue", "seq", "at", "transition", "state", "consumer", "error")


def report(
    context: JobContext,
    *,
    output: str | None = None,
    period_s: int | str = DAY_S,
    until_ms: int | None = None,
    tenants: Mapping[str, str] | None = None,
) -> Summary:
    """Write the page and its tables; if continuous, at intervals.

    The report is about ``period_s`` seconds, or ``"all"``, until ``until_ms`` or now. With
    ``tenants``, names and credentials, there is one below ``output`` for each of them, and a page
    that compares them. The lake's path then has ``{tenant}`` in it.
    """
    if output is None and (context.options.lake is None or tenants):
        raise BadInput("The report needs a destination: use --output or --lake.", field="output")
    if period_s != ALL and (not isinstance(period_s, int) or period_s < 1):
        raise BadInput("period must be a time of at least a second, or all.", field="period")
    if tenants:
        _check_tenants(context, tenants)
    # With the credentials of a bucket, if they are in the URI.
    folder = below_lake(context.options.lake or "", _FOLDER) if output is None else output
    with only_run(context, "report", public_name(folder)):
        while True:
            if tenants:
                summary = _of_tenants(context, folder, period_s, until_ms, tenants)
            else:
                summary = _of_one(context, folder, period_s, until_ms)
            if context.job != "report" or not context.options.continuous or context.wait():
                return summary


def _of_one(context: JobContext, folder: str, period_s: int | str, until_ms: int | None) -> Summary:
    if context.options.lake is not None:
        _check_lake(context)
    return _summary(context, _report(context, folder, period_s, until_ms))


def _check_tenants(context: JobContext, tenants: Mapping[str, str]) -> None:
    for name in tenants:
        check_name(name, "tenant")
    lake = context.options.lake
    if lake is not None and _TENANT not in lake:
        raise BadInput(
            f"A lake has one tenant. Put {_TENANT} into the path of --lake, in place of its name.",
            field="lake",
        )


def _of_tenants(
    context: JobContext,
    folder: str,
    period_s: int | str,
    until_ms: int | None,
    tenants: Mapping[str, str],
) -> Summary:
    """A report for each tenant, by its own credential, and the page that compares them."""
    # The same period for all.
    until_ms = context.clock.now() if until_ms is None else until_ms
    found: list[TenantReport] = []
    for number, (name, credential) in enumerate(tenants.items()):
        context.reach("tenants", number, len(tenants))
        figures = _of_tenant(
            context, below_lake(folder, name), period_s, until_ms, name, credential
        )
        found.append(TenantReport(name, figures, f"{name}/{_PAGE}"))
    files = open_files(folder, lambda: context.spark)
    _write(files, "tables/tenants.parquet", tenants_table(found))
    files.remove([_PAGE])
    files.create(_PAGE, make_tenants_page(found).encode())
    context.report = files.uri(_PAGE)
    return {
        "report": context.report,
        "tenants": len(found),
        "messages": sum(one.messages for one in found),
        "failures": sum(one.figures.current.failures for one in found),
    }


def _of_tenant(
    context: JobContext,
    folder: str,
    period_s: int | str,
    until_ms: int,
    name: str,
    credential: str,
) -> Figures:
    """The report of a tenant, as a run of its own in that tenant."""
    lake = context.options.lake
    own = JobContext(
        replace(
            context.options,
            server=replace(context.server, credential=credential),
            lake=None if lake is None else lake.replace(_TENANT, name),
            continuous=False,
        ),
        run=f"{context.run}-{name}"[:MAX_NAME],
        job="report",
        clock=context.clock,
        stopping=context.stopping,
        spark=context.spark,
    )
    found: list[Figures] = []

    def job(own: JobContext) -> Summary:
        if own.options.lake is not None:
            _check_lake(own)
        found.append(_report(own, folder, period_s, until_ms))
        return _summary(own, found[0])

    try:
        run_job(job, own)
    finally:
        own.close()
    return found[0]


def _check_lake(context: JobContext) -> None:
    """Refuse a missing lake, or a lake of another store (E1, A1)."""
    lake = require_lake(context, context.lake_files())
    what = f"The lake {context.lake}"
    if lake.store is not None:
        check_store(store_of(context), lake.store, what)
    check_position(lake.through, int(context.remote.ask(lambda q: q.log_end())), what)
    check_last(context, lake)


def _report(context: JobContext, folder: str, period_s: int | str, until_ms: int | None) -> Figures:
    """Write the page and the tables of the context's tenant."""
    log = _log(context)
    end = (context.clock.now() if until_ms is None else until_ms) // 1000 + 1
    period = _everything(log, end) if period_s == ALL else period_of(end - int(period_s), end)
    files = open_files(folder, lambda: context.spark)
    # On disk, because every transition is in it.
    claims = with_claims(_history(context)).persist(StorageLevel.DISK_ONLY)
    rows: dict[str, list[Row]] = {}
    try:
        tables = make_tables(log, claims, period).named()
        for number, (name, table) in enumerate(tables.items()):
            context.reach("tables", number, len(tables))
            found = table.toArrow()
            _write(files, f"tables/{name}.parquet", found)
            shown = [column for column in found.column_names if column != "sketch"]
            rows[name] = found.select(shown).to_pylist()
    finally:
        claims.unpersist()
    figures = collect_figures(
        rows, period, url=context.server.url, made_at=context.clock.now(), now=_queues_now(context)
    )
    page = make_page(figures)
    files.remove([_PAGE])
    files.create(_PAGE, page.encode())
    context.report = files.uri(_PAGE)
    _send(context, page)
    return figures


def _send(context: JobContext, page: str) -> None:
    """Let the console show the page; the report is complete without that."""
    try:
        context.remote.ask(lambda q: q.put_report(page))
    except (TooLarge, UnknownRoute) as error:
        context.note(f"The console does not show this report: {error.detail}")


def _everything(log: DataFrame, end: int) -> Period:
    """From the first message on. Its deliveries can only be later."""
    (found,) = log.agg(F.unix_timestamp(F.min("timestamp")).alias("first")).collect()
    first = end - DAY_S if found["first"] is None else int(found["first"])
    return period_of(min(first, end - 1), end, is_all=True)


def _write(files: Files, path: str, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    files.remove([path])
    files.create(path, buffer.getvalue())


def _summary(context: JobContext, figures: Figures) -> Summary:
    return {
        "report": context.report or "",
        "messages": sum(topic.messages for topic in figures.topics),
        "arrivals": figures.current.arrivals,
        "acked": figures.current.acks,
        "failures": figures.current.failures,
        "fingerprints": len(figures.failures),
    }


def _log(context: JobContext) -> DataFrame:
    hot = read_table(context.spark, context.server, "log", payload=False, failOnDataLoss=False)
    hot = hot.select(*_LOG_COLUMNS)
    if context.options.lake is None:
        return hot
    files = context.lake_files()
    cold = read_lake(context.spark, files, MESSAGES, _LOG_COLUMNS)
    # Up to its last offset use the lake, above it the store.
    through = _through(cold)
    return cold.unionByName(hot.where(F.col("offset") > through))


def _history(context: JobContext) -> DataFrame:
    hot = read_table(context.spark, context.server, "history").select(*_HISTORY_COLUMNS)
    if context.options.lake is None:
        return hot
    files = context.lake_files()
    cold = read_lake(context.spark, files, HISTORY, _HISTORY_COLUMNS)
    # Not by ``seq``: the lake renumbers transitions that the store has forgotten in part.
    return merged(hot, cold)


def _through(cold: DataFrame) -> int:
    (found,) = cold.agg(F.coalesce(F.max("offset"), F.lit(-1)).alias("last")).collect()
    return int(found["last"])


def _queues_now(context: JobContext) -> dict[str, QueueNow]:
    """The current state of every queue, from the broker."""
    found: dict[str, QueueNow] = {}
    for info in context.remote.ask(lambda q: q.queues()):
        stats: Any = context.remote.ask(lambda q, name=info.name: q.stats(name))  # type: ignore[misc]
        found[info.name] = QueueNow(
            depth=stats.depth,
            failed=stats.failed,
            oldest_ms=stats.oldest_available_ms,
            paused=info.policy.paused,
        )
    return found
