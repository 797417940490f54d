"""``report``: writes a page with charts and the tables behind it.

It covers the store and, if there is one, the lake: the lake up to its end, the store above it. A
lake of another store is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.errors import BadInput
from penstock.model.identity import check_position, check_store
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.lake.files import open_files
from penstock.pipeline.lake.histories import merged
from penstock.pipeline.lake.layout import HISTORY, MESSAGES
from penstock.pipeline.lake.ownership import check_last, require_lake, store_of
from penstock.pipeline.lake.reader import read_lake
from penstock.pipeline.report.page import Figures, make_page
from penstock.pipeline.report.tables import Span, make_tables, span_of
from penstock.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["report"]

_PAGE: Final = "index.html"
#: The folder below the lake for reports without an output of their own.
_FOLDER: Final = "reports"
_LOG_COLUMNS: Final = ("offset", "topic", "timestamp", "size")
_HISTORY_COLUMNS: Final = ("id", "queue", "seq", "at", "transition", "state", "consumer", "error")


def report(context: JobContext, *, output: str | None = None) -> Summary:
    """Write the page and its tables; if continuous, at intervals."""
    if output is None and context.options.lake is None:
        raise BadInput("The report needs a destination: use --output or --lake.", field="output")
    folder = output or f"{context.lake.rstrip('/')}/{_FOLDER}"
    while True:
        if context.options.lake is not None:
            _check_lake(context)
        summary = _report(context, folder)
        if context.job != "report" or not context.options.continuous or context.wait():
            return summary


def _check_lake(context: JobContext) -> None:
    """Refuse a missing lake, or a lake of another store (E1, A1)."""
    lake = require_lake(context, open_files(context.lake, lambda: context.spark))
    what = f"The lake {context.lake}"
    if lake.store is not None:
        check_store(store_of(context), lake.store, what)
    check_position(lake.through, int(context.remote.ask(lambda q: q.log_end())), what)
    check_last(context, lake)


def _report(context: JobContext, folder: str) -> Summary:
    spark = context.spark
    log, history = _log(context), _history(context).cache()
    try:
        span = span_of(log, history)
        files = open_files(folder, lambda: spark)
        rows: dict[str, list[dict[str, object]]] = {}
        if span is not None:
            tables = make_tables(log, history, span).named()
            for number, (name, table) in enumerate(tables.items()):
                context.reach("tables", number, len(tables))
                uri = files.uri(f"tables/{name}")
                table.coalesce(1).write.mode("overwrite").parquet(uri)
                shown = spark.read.schema(table.schema).parquet(uri).drop("sketch")
                rows[name] = [row.asDict() for row in shown.collect()]
        page = make_page(
            Figures(
                url=context.server.url,
                made_at=context.clock.now(),
                span=span,
                rows=rows,
                depths=_depths(context),
            )
        )
    finally:
        history.unpersist()
    files.remove([_PAGE])
    files.create(_PAGE, page.encode())
    context.report = files.uri(_PAGE)
    return {"report": context.report, **_counts(rows, span)}


def _counts(rows: dict[str, list[dict[str, object]]], span: Span | None) -> Summary:
    if span is None:
        return {"messages": 0}

    def total(table: str, column: str) -> int:
        return sum(int(str(row[column])) for row in rows[table])

    return {
        "messages": total("published", "messages"),
        "transitions": total("events", "count"),
        "failures": total("rates", "failures"),
        "fingerprints": len(rows["failures"]),
    }


def _log(context: JobContext) -> DataFrame:
    hot = read_table(context.spark, context.server, "log", payload=False, failOnDataLoss=False)
    hot = hot.select(*_LOG_COLUMNS)
    if context.options.lake is None:
        return hot
    files = open_files(context.lake, lambda: context.spark)
    cold = read_lake(context.spark, files, MESSAGES).select(*_LOG_COLUMNS)
    # Up to its last offset use the lake, above it the store.
    through = _through(cold)
    return cold.unionByName(hot.where(F.col("offset") > through))


def _history(context: JobContext) -> DataFrame:
    hot = read_table(context.spark, context.server, "history").select(*_HISTORY_COLUMNS)
    if context.options.lake is None:
        return hot
    files = open_files(context.lake, lambda: context.spark)
    cold = read_lake(context.spark, files, HISTORY).select(*_HISTORY_COLUMNS)
    # Not by ``seq``: the lake renumbers transitions that the store has forgotten in part.
    return merged(hot, cold)


def _through(cold: DataFrame) -> int:
    (found,) = cold.agg(F.coalesce(F.max("offset"), F.lit(-1)).alias("last")).collect()
    return int(found["last"])


def _depths(context: JobContext) -> dict[str, int]:
    """The current depth of every queue, from the broker."""
    names = [info.name for info in context.remote.ask(lambda q: q.queues())]
    return {
        name: context.remote.ask(lambda q, name=name: q.stats(name)).depth  # type: ignore[misc]
        for name in names
    }
