"""``replay``: repeats deliveries or publishes from the lake, each once per replay id (P4).

The broker makes deliveries that a queue still has (failed, done, or in the log) available again,
at their old position. Messages that only the lake has are published again, through the sink, with
a header that names the replay. A killed replay that is run again with the same replay id
continues where it was.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.errors import BadInput
from penstock.filters import parse
from penstock.filters.to_spark import matches
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.jobs.publishing import Published, publish, writer_of
from penstock.pipeline.lake.commits import Lake
from penstock.pipeline.lake.layout import MESSAGES
from penstock.pipeline.lake.ownership import require_lake, store_of
from penstock.pipeline.lake.reader import read_lake
from penstock.pipeline.report.fingerprints import fingerprint
from penstock.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SOURCES", "replay"]

SOURCES: Final = ("failed", "done", "log", "lake")
#: The header of a message that was published again: the replay's id.
HEADER: Final = "penstock-replay"
#: Partitions when publishing from the lake, independent of the machine.
_PARTITIONS: Final = 8
#: Length of a derived id.
_ID_DIGITS: Final = 24
#: Messages per call to the broker.
_AT_ONCE: Final = 50_000


def replay(
    context: JobContext,
    *,
    queue: str | None = None,
    source: str = "failed",
    where: str | None = None,
    fingerprints: tuple[str, ...] = (),
    topic: str | None = None,
    replay_id: str | None = None,
    rate: int | None = None,
    dry_run: bool = False,
) -> Summary:
    """Replay the selected messages, or only count them."""
    if source not in SOURCES:
        raise BadInput(f"source must be one of {', '.join(SOURCES)}.", field="source")
    if where is not None:
        parse(where)
    if source == "lake":
        return _from_lake(context, where, topic, replay_id, dry_run=dry_run)
    run = replay_id or context.run
    if queue is None:
        raise BadInput(f"A replay of {source} deliveries needs a queue.", field="queue")
    if fingerprints and source != "failed":
        raise BadInput("Only failed deliveries have a fingerprint.", field="fingerprint")
    context.remote.ask(lambda q: q.queue(queue))
    ids = _fingerprinted(context, queue, fingerprints) if fingerprints else None
    count = skipped = 0
    if replay_id is None and not dry_run:
        # Before anything moves: a job that is killed can be repeated.
        context.note(f"replay id {run}: with --replay-id {run} nothing is moved twice.")
    pieces = (
        [None] if ids is None else [ids[i : i + _AT_ONCE] for i in range(0, len(ids), _AT_ONCE)]
    )
    for number, piece in enumerate(pieces):
        reply = context.remote.ask(
            lambda q, piece=piece: q.replay(  # type: ignore[misc]
                queue,
                source,
                where=where,
                ids=piece,
                rate=rate,
                dry_run=dry_run,
                replay_id=None if dry_run else run,
            )
        )
        count += reply.count
        skipped += reply.skipped
        context.reach("replayed", number + 1, len(pieces))
    return {
        "replayed": count,
        "skipped": skipped,
        "replay_id": run,
        "dry_run": str(dry_run).lower(),
    }


def _fingerprinted(context: JobContext, queue: str, wanted: tuple[str, ...]) -> list[int]:
    """The failed messages of a queue whose errors have one of these fingerprints."""
    failed = read_table(context.spark, context.server, "failed", queue=queue)
    chosen = failed.where(fingerprint(F.col("error")).isin(*wanted)).select("id")
    return sorted(row["id"] for row in chosen.collect())


def _from_lake(
    context: JobContext,
    where: str | None,
    topic: str | None,
    replay_id: str | None,
    *,
    dry_run: bool,
) -> Summary:
    files = context.lake_files()
    lake = require_lake(context, files)
    run = replay_id or lake_replay_id(context, lake, where, topic)
    if replay_id is None and not dry_run:
        # Before anything is published, so that the user can repeat a killed job.
        context.note(
            f"replay id {run}, derived from the selection and its destination: the same command "
            "publishes nothing twice within thirty days. Use --replay-id to replay it once more."
        )
    rows = read_lake(context.spark, files, MESSAGES)
    # Messages that this replay published may be in the lake already.
    rows = rows.where(~F.col("headers")[HEADER].s.eqNullSafe(run))
    if where is not None:
        rows = rows.where(matches(parse(where)))
    if topic is not None:
        rows = rows.withColumn("topic", F.lit(topic))
    summary: Summary = {"replay_id": run, "dry_run": str(dry_run).lower()}
    if dry_run:
        return {"replayed": rows.count(), **summary}
    done = _publish(context, rows, run)
    return {"replayed": done.new, "skipped": done.found, **summary}


def lake_replay_id(context: JobContext, lake: Lake, where: str | None, topic: str | None) -> str:
    """An id that is the same for the same selection of the same lake, into the same store."""
    origin = context.lake if lake.store is None else str(lake.store.store)
    text = "\0".join([origin, store_of(context).store, where or "", topic or ""])
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


def _publish(context: JobContext, rows: DataFrame, run: str) -> Published:
    """Publish rows of the lake again under one write id."""
    mark = F.create_map(
        F.lit(HEADER),
        F.struct(
            F.lit(run).alias("s"),
            F.lit(None).cast("bigint").alias("i"),
            F.lit(None).cast("double").alias("d"),
            F.lit(None).cast("boolean").alias("b"),
        ),
    )
    kept = F.map_filter(F.coalesce("headers", F.create_map()), lambda name, _: name != HEADER)
    # Partition by offset alone: files may be compacted and added before a repeated run, and the
    # sink finds what it has published by partition.
    columns = rows.repartition(_PARTITIONS, "offset").select(
        "topic",
        "value",
        F.map_concat(kept, mark).alias("headers"),
        F.col("key").alias("replace_key"),
        "partition_key",
        "priority",
        "content_type",
        "max_attempts",
    )
    # The lake may have more rows when the run is repeated.
    writer = writer_of(context.server, columns.schema, f"replay-{run}", topic=None, grows=True)
    return publish(columns, writer)
