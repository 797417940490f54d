"""``verify``: checks the laws over the whole store and the lake, distributed over Spark.

Each check reports how much it examined and what it found, like ``penstock verify``. The store
may be in use: the log is read before anything that refers to it, so that a removed entry is not
reported as missing. A suspicious delivery is examined again, individually, before it counts as a
violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.errors import OtherStore, UnknownMessage
from penstock.model.delivery import Event, Snapshot
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.lake.audit import (
    check_copies,
    check_files,
    check_histories,
    check_offsets,
    found_by,
)
from penstock.pipeline.lake.checks import HASHED, row_hash, wrong_payloads
from penstock.pipeline.lake.commits import Lake
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import HISTORY, MESSAGES
from penstock.pipeline.lake.ownership import check_owner, require_lake, store_of
from penstock.pipeline.lake.reader import read_files
from penstock.pipeline.tables import read_table
from penstock.verify.browse import home_of
from penstock.verify.histories import history_defects, is_whole
from penstock.verify.report import MAX_KEPT, Check, Report, Violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["verify", "verify_all"]

#: Suspicious deliveries that are examined again; any others stay unresolved.
_SUSPECTS: Final = 1_000
#: States that only an event leads to; the others are also reached by the passage of time.
_EXPLAINED: Final = ("done", "in_flight", "expired", "failed")
#: Violations described in the summary.
_SHOWN: Final = 10


def verify(context: JobContext) -> Summary:
    """Check everything; the summary has the number of violations and the first of them."""
    report = verify_all(context)
    summary: Summary = {
        "violations": report.violation_count,
        "unresolved": sum(check.unresolved for check in report.checks),
        "log_entries": report.log_entries,
        "deliveries": report.deliveries,
        "queues": report.queues,
    }
    for check in report.checks:
        summary[f"{check.name}_examined"] = check.examined
        summary[f"{check.name}_violations"] = check.violation_count
    for number, violation in enumerate(report.violations[:_SHOWN]):
        summary[f"violation_{number + 1}"] = str(violation)[:300]
    return summary


def verify_all(context: JobContext) -> Report:
    """Run every check; without a lake, only those of the store."""
    started_at = context.clock.now()
    if context.options.lake is not None:
        require_lake(context, context.lake_files())
    ask = context.remote.ask
    queues = ask(lambda q: q.queues())
    first, end = int(ask(lambda q: q.log_start())), int(ask(lambda q: q.log_end()))
    log = _read_log(context, first, end, payload=False).cache()
    deliveries = read_table(context.spark, context.server, "deliveries", payload=False).cache()
    try:
        # The log first: references to an entry are created after it and removed before it.
        entries = log.count()
        count = deliveries.count()
        checks = [
            *_store_checks(context, log, deliveries, first, end),
            *(() if context.options.lake is None else _lake_checks(context, log)),
        ]
    finally:
        log.unpersist()
        deliveries.unpersist()
    return Report(
        checks=tuple(checks),
        started_at=started_at,
        finished_at=context.clock.now(),
        deep=True,
        quiescent=int(ask(lambda q: q.log_end())) == end,
        queues=len(queues),
        log_entries=entries,
        deliveries=count,
    )


def _read_log(context: JobContext, first: int, end: int, *, payload: bool) -> DataFrame:
    return read_table(
        context.spark,
        context.server,
        "log",
        startingOffsets=first,
        endingOffsets=end,
        payload=payload,
        failOnDataLoss=False,
    )


# -- the lake --------------------------------------------------------------------------


def _lake_checks(context: JobContext, log: DataFrame) -> list[Check]:
    spark = context.spark
    files = context.lake_files()
    lake = require_lake(context, files)
    checks = [_check_identity(context, files, lake), check_files(spark, files, lake)]
    context.reach("checks", 4, 7)
    there = {**files.walk(MESSAGES), **files.walk(HISTORY)}
    chosen = [file for file in lake.of(MESSAGES) if file.path in there]
    messages = read_files(spark, files, chosen, MESSAGES, HASHED[MESSAGES], lenient=True)
    rows = messages.select("offset", "id", row_hash(MESSAGES).alias("hash")).cache()
    try:
        checks += [check_copies(log, rows, lake), check_offsets(rows, lake)]
        context.reach("checks", 6, 7)
        known = [file for file in lake.of(HISTORY) if file.path in there]
        checks.append(
            check_histories(read_files(spark, files, known, HISTORY, lenient=True), log, rows)
        )
        context.reach("checks", 7, 7)
    finally:
        rows.unpersist()
    return checks


def _check_identity(context: JobContext, files: Files, lake: Lake) -> Check:
    """The lake holds the log of this store in its current epoch (A1)."""
    found: tuple[Violation, ...] = ()
    try:
        check_owner(context, files, lake, store_of(context))
    except OtherStore as error:
        found = (Violation(law="A1", detail=error.detail),)
    return Check(
        law="A1",
        name="identity",
        what="The lake belongs to this store and epoch, and the log is not behind it.",
        examined=1,
        violations=found,
        violation_count=len(found),
        unresolved=0,
    )


# -- the store -------------------------------------------------------------------------


def _store_checks(
    context: JobContext, log: DataFrame, deliveries: DataFrame, first: int, end: int
) -> list[Check]:
    payloads = found_by(
        "P3",
        "payloads",
        "Every payload of the log has the size and the checksum of its entry.",
        log.count(),
        wrong_payloads(_read_log(context, first, end, payload=True)),
        lambda row: f"the payload at offset {row['offset']} is not what was published",
    )
    context.reach("checks", 1, 7)
    older = deliveries.where(F.col("id") < end)
    orphans = older.select("id", "queue", "state").join(log.select("id"), "id", "left_anti")
    references = found_by(
        "G1",
        "references",
        "The message of every delivery is in the log.",
        older.count(),
        orphans,
        lambda row: f"queue {row['queue']!r} has it {row['state']}, but the log does not have it",
    )
    context.reach("checks", 2, 7)
    states = _check_states(context, deliveries, first, end)
    context.reach("checks", 3, 7)
    return [payloads, references, states]


def _check_states(context: JobContext, deliveries: DataFrame, first: int, end: int) -> Check:
    """Every delivery has one state, and a history that leads to it (S3)."""
    histories = read_table(
        context.spark,
        context.server,
        "history",
        startingOffsets=first,
        endingOffsets=end,
        failOnDataLoss=False,
    )
    places = deliveries.select("id", "queue", "state")
    twice = places.groupBy("id", "queue").count().where("count > 1").select("id", "queue")
    home = F.regexp_replace("queue", r"\.dlq$", "").alias("queue")
    led_to = histories.select("id", home, "state").distinct()
    replayed = histories.where("transition = 'replay'").select("id", home).distinct()
    unexplained = (
        places.where(F.col("state").isin(*_EXPLAINED) & (F.col("id") < end))
        .join(led_to, ["id", "queue", "state"], "left_anti")
        .join(replayed, ["id", "queue"], "left_anti")
        .select("id", "queue")
    )
    suspects = twice.union(unexplained).distinct().limit(_SUSPECTS + 1).collect()
    found: list[Violation] = []
    unresolved = 0
    for row in suspects[:_SUSPECTS]:
        detail = _look_again(context, row["id"], row["queue"])
        if detail is None:
            unresolved += 1
        else:
            found.append(
                Violation(law="S3", queue=row["queue"], message_id=row["id"], detail=detail)
            )
    return Check(
        law="S3",
        name="states",
        what="Every delivery is in one state, and its history leads there.",
        examined=deliveries.count(),
        violations=tuple(found[:MAX_KEPT]),
        violation_count=len(found),
        unresolved=unresolved + max(0, len(suspects) - _SUSPECTS),
    )


def _look_again(context: JobContext, message_id: int, queue: str) -> str | None:
    """What is wrong with a delivery while it does not change; None if nothing is."""

    def events() -> Sequence[Event]:
        found = context.remote.ask(lambda q: q.history(message_id))
        return [event for event in found if home_of(event.queue) == queue]

    try:
        before = events()
        shown = _places(context, message_id, queue)
        if before != events():
            return None
    except UnknownMessage:
        return None
    if len(shown) > 1:
        return f"it is {' and '.join(place.state.value for place in shown)}"
    if not shown or not is_whole(before):
        return None
    return next((defect.detail for defect in history_defects(shown[0], before)), None)


def _places(context: JobContext, message_id: int, queue: str) -> list[Snapshot]:
    found = context.remote.ask(lambda q: q.message(message_id))
    return [place for place in found.deliveries if home_of(place.queue) == queue]
