"""Histories: archives the transitions of the messages in the lake.

A message is archived once but its history continues, so histories are read repeatedly. A block of
the lake is read when it is new, and then whenever its age has doubled since the last time, so that
each is read only a few times, but always before a queue forgets done deliveries. Blocks that are
due together are merged. A run of a single pass reads every block that has unfinished deliveries.
A block whose messages have left the store is settled and never read again.

The store forgets the histories of deliveries that retention removed, and the oldest events of
very long ones. The lake keeps what it has and adds new events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.model.limits import MAX_OFFSET
from penstock.pipeline.lake.archive import STEP_ENTRIES, Archived, Archiver, compare
from penstock.pipeline.lake.checks import digest_of
from penstock.pipeline.lake.commits import Block, File
from penstock.pipeline.lake.layout import HISTORY
from penstock.pipeline.lake.reader import read_files
from penstock.pipeline.lake.staging import stage
from penstock.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["archive_histories", "block_of", "due", "merged", "spans"]

#: States in which nothing more happens to a delivery by itself.
_AT_REST: Final = ("done", "expired")
#: Approximate transitions per file.
_MOST_ROWS: Final = 5_000_000
#: The columns that identify a transition of a message in a queue; ``seq`` is only its current
#: position in the store.
_EVENT: Final = ("id", "queue", "at", "transition", "state", "consumer", "error")
_DAY_MS: Final = 24 * 3600 * 1000


def archive_histories(archiver: Archiver) -> Archived:
    """Archive the transitions of the messages in every block that is due."""
    context = archiver.context
    now = context.clock.now()
    first = int(context.remote.ask(lambda q: q.log_start()))
    longest_ms = _longest_ms(archiver)
    for span in spans([one for one in _unsettled(archiver) if one.end <= first], MAX_OFFSET):
        # Their messages have left the store, so the lake has all there is.
        archiver.commit("history", None, span[0].start, span[-1].end, quiet=True, settled=True)
    once = not context.options.continuous
    chosen = [block for block in _unsettled(archiver) if due(block, now, longest_ms, once=once)]
    found = list(spans(chosen, STEP_ENTRIES))
    done = Archived()
    for number, span in enumerate(found):
        if context.stopping.is_set():
            break
        done += _archive_span(archiver, span)
        context.reach("histories", number + 1, len(found))
    return done


def _unsettled(archiver: Archiver) -> list[Block]:
    return [block for block in archiver.manifest.lake.blocks if not block.settled]


def due(block: Block, now: int, longest_ms: int, *, once: bool) -> bool:
    """Whether the histories of an unsettled block should be read now."""
    if block.read_at is None or (once and not block.quiet):
        return True
    age_ms = block.read_at - block.archived_at
    return now - block.read_at >= min(age_ms, longest_ms)


def spans(blocks: list[Block], entries: int) -> Iterator[list[Block]]:
    """Groups of adjacent blocks with at most ``entries`` entries together."""
    span: list[Block] = []
    for block in blocks:
        fits = sum(one.entries for one in span) + block.entries <= entries
        if span and (span[-1].end != block.start or not fits):
            yield span
            span = []
        span.append(block)
    if span:
        yield span


def _longest_ms(archiver: Archiver) -> int:
    """Half of the shortest time after which a queue forgets done deliveries."""
    queues = archiver.context.remote.ask(lambda q: q.queues())
    times = [one.policy.done_retention_s * 500 for one in queues if one.policy.done_retention_s]
    return min([*times, _DAY_MS])


def _archive_span(archiver: Archiver, span: list[Block]) -> Archived:
    context, manifest = archiver.context, archiver.manifest
    start, end = span[0].start, span[-1].end
    routed = _is_routed(archiver, end)
    old = [file for file in manifest.lake.of(HISTORY) if start <= file.first and file.last < end]
    # Entries that have left the store since are in the lake, so data loss is no error.
    current = read_table(
        context.spark,
        context.server,
        "history",
        startingOffsets=start,
        endingOffsets=end,
        failOnDataLoss=False,
    ).cache()
    try:
        quiet = not _moving(current) and routed
        rows = current
        if old:
            rows = merged(current, read_files(context.spark, archiver.files, old, HISTORY))
        wanted = digest_of(rows, HISTORY)
        before = sum(file.rows for file in old)
        if wanted.rows == before:
            archiver.commit("history", None, start, end, quiet=quiet)
            return Archived()
        staged = stage(
            context.spark,
            archiver.files,
            rows.coalesce(1),
            HISTORY,
            begun=archiver.begun,
            partitions=manifest.partitions(HISTORY),
            most=_MOST_ROWS,
        )
        compare(wanted, staged.digest, f"the histories of {start} to {end}")
        archiver.commit("history", staged, start, end, removed=old, quiet=quiet)
        return Archived(histories=wanted.rows - before)
    finally:
        current.unpersist()


def merged(current: DataFrame, known: DataFrame) -> DataFrame:
    """Every transition that the store or the lake has, once, renumbered.

    Of transitions that differ only in their number, the larger count of the two is kept.
    """
    alike = Window.partitionBy(*_EVENT).orderBy("seq")
    both = [
        rows.select(*_EVENT, "seq", F.row_number().over(alike).alias("copy"), F.lit(source))
        for source, rows in enumerate((known, current))
    ]
    names = [*_EVENT, "seq", "copy", "source"]
    union = both[0].toDF(*names).unionByName(both[1].toDF(*names))
    # An event that only the lake has is older than one in the store with the same time.
    once = union.groupBy(*_EVENT, "copy").agg(F.max(F.struct("source", "seq")).alias("place"))
    order = Window.partitionBy("id", "queue").orderBy("at", "place")
    numbered = once.withColumn("seq", (F.row_number().over(order) - 1).cast("int"))
    return numbered.select(*current.columns)


def _moving(current: DataFrame) -> bool:
    """Whether the store has a delivery to which something may still happen by itself."""
    last = current.groupBy("id", "queue").agg(F.max_by("state", "seq").alias("state"))
    return not last.where(~F.col("state").isin(*_AT_REST)).isEmpty()


def _is_routed(archiver: Archiver, end: int) -> bool:
    """Whether every queue has been routed up to ``end``."""
    queues = archiver.context.remote.ask(lambda q: q.queues())
    return all(one.cursor is None or int(one.cursor) >= end for one in queues)


def block_of(file: File, blocks: tuple[Block, ...]) -> int:
    """The index of the block that a file of histories belongs to."""
    return next(
        number
        for number, block in enumerate(blocks)
        if block.start <= file.first and file.last < block.end
    )
