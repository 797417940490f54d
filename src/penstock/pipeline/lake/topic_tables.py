"""Topic tables: the payloads of each topic with a schema as typed columns, in a Delta table.

They are derived from ``messages`` after each pass of ``archive``. Each says up to which offset it
goes, in the commit that added the rows, so a killed run neither loses nor repeats any. A new table,
and one whose columns got other types, is made from the whole lake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.errors import BadSchema
from penstock.pipeline.format.error_lines import without_spark
from penstock.pipeline.lake.archive import Archiver
from penstock.pipeline.lake.commits import File, Lake
from penstock.pipeline.lake.layout import MESSAGES, TOPICS, topic_version
from penstock.pipeline.lake.payload_columns import payload_columns
from penstock.pipeline.lake.reader import read_files
from penstock.pipeline.lake.sessions import reading_payloads
from penstock.pipeline.lake.topic_delta import TopicFile, TopicLog, TopicState
from penstock.pipeline.lake.topic_files import (
    FILES,
    WANTED,
    TopicTarget,
    TopicWriter,
    file_of,
    write_table,
)
from penstock.pipeline.lake.topic_schema import MESSAGE_FIELDS, RESERVED, merged_fields

__all__ = ["TopicTables"]

#: A table without new rows says how far it goes after so many entries of other topics.
_IDLE_ENTRIES: Final = 500_000
#: Files below this size are small, and so many of them are merged.
_SMALL: Final = 32 * 1024 * 1024
FEWEST: Final = 8
_MERGED: Final = 128 * 1024 * 1024


class _Plan(Struct, frozen=True):
    """What a table needs."""

    topic: str
    log: TopicLog
    target: TopicTarget
    fields: tuple[pa.Field, ...]
    whole: bool
    """The table is made anew."""


class TopicTables:
    """The topic tables of one run, which owns the lake."""

    def __init__(self, archiver: Archiver) -> None:
        self._archiver = archiver
        self._files = archiver.files
        self._logs: dict[str, TopicLog] = {}
        self._noted: set[str] = set()
        self._listed = False
        self._through: dict[str, int] = {}
        """How far each table goes, even if its commits do not say so because it has no new rows."""

    def update(self) -> int:
        """Add what ``messages`` has since; returns the number of rows added."""
        context, lake = self._archiver.context, self._archiver.manifest.lake
        if self._files.store is None:
            self._note("Topic tables need a lake in a folder or at s3://: there are none here.")
            return 0
        schemas = {
            name: (policy.schema_type, policy.schema)
            for name, policy in context.remote.ask(lambda q: q.topics())
            if policy.schema_type is not None and policy.schema is not None
        }
        self._open(schemas)
        plans = [
            plan
            for topic, log in self._logs.items()
            if (plan := self._plan(topic, log, schemas.get(topic), lake)) is not None
        ]
        # Together, those that read only the newest messages.
        grouped = [[plan] for plan in plans if not plan.target.start]
        grouped.append([plan for plan in plans if plan.target.start])
        done = sum(self._write(group, lake) for group in grouped if group)
        for topic, log in self._logs.items():
            self._compact(topic, log)
        return done

    def _open(self, schemas: Mapping[str, object]) -> None:
        """Open new tables, and the first time those that are there, of topics with a schema or not.

        What killed runs left in them is removed: files for the next version.
        """
        there = set() if self._listed else set(self._files.names(TOPICS))
        self._listed = True
        for topic in sorted({*schemas, *there} - self._logs.keys()):
            folder = f"{TOPICS}/{topic}"
            log = TopicLog(
                self._files.uri_for_delta(folder), topic, self._files.options_for_delta()
            )
            log.read()
            if topic in there:
                left = [
                    path
                    for path in self._files.walk(folder)
                    if (topic_version(path) or -1) > log.version
                ]
                self._files.remove(left)
            if log.version >= 0 or topic in schemas:
                self._logs[topic] = log

    def _plan(
        self, topic: str, log: TopicLog, given: tuple[str, str] | None, lake: Lake
    ) -> _Plan | None:
        """What the table needs; None if it is complete."""
        state = log.state
        if given is None:
            if state is None:
                return None
            # The topic has no schema any more: its messages go on as they did.
            given = state.schema_type, state.schema
        try:
            columns = payload_columns(*given, RESERVED)
        except BadSchema as error:
            self._note(f"The topic {topic} has no table: {error.detail}")
            return None
        known = self._through.get(topic, 0)
        unchanged = state is not None and (state.schema_type, state.schema) == given
        if unchanged and max(known, 0 if state is None else state.through) >= lake.through:
            return None
        log.read()  # Other programs may have changed the table, for example merged its files.
        wanted = TopicLog.normal((*MESSAGE_FIELDS, *columns.fields))
        fields = merged_fields(log.fields, wanted)
        if log.state is None or fields is None:
            target = TopicTarget(0, log.version + 1, *given)
            return _Plan(topic, log, target, wanted, whole=True)
        # New columns are a commit of their own, before the rows.
        version = log.version + (1 if fields == log.fields else 2)
        target = TopicTarget(max(log.state.through, known), version, *given)
        return _Plan(topic, log, target, fields, whole=False)

    def _write(self, plans: Sequence[_Plan], lake: Lake) -> int:
        """Write the files of some tables in one Spark job, and commit them."""
        chosen = _chosen(lake, plans)
        found: dict[str, list[TopicFile]] = defaultdict(list)
        if chosen:
            for topic, file in self._written(plans, chosen):
                found[topic].append(file)
        self._archiver.manifest.hold()
        for plan in plans:
            self._commit(plan, found[plan.topic], lake.through)
        return sum(file.rows for files in found.values() for file in files)

    def _written(
        self, plans: Sequence[_Plan], chosen: Sequence[File]
    ) -> list[tuple[str, TopicFile]]:
        context, store = self._archiver.context, self._files.store
        assert store is not None, "update returns without one"
        targets = {plan.topic: plan.target for plan in plans}
        lowest = min(target.start for target in targets.values())
        with without_spark(), reading_payloads(context.spark, max(file.largest for file in chosen)):
            rows = read_files(context.spark, self._files, chosen, MESSAGES, WANTED)
            rows = rows.where(F.col("topic").isin(*targets) & (F.col("offset") >= lowest))
            written = rows.mapInArrow(TopicWriter(store, targets), FILES).collect()
        return [(row["topic"], file_of(row.asDict())) for row in written]

    def _commit(self, plan: _Plan, files: Sequence[TopicFile], through: int) -> None:
        log, target = plan.log, plan.target
        state = TopicState(through=through, schema_type=target.schema_type, schema=target.schema)
        schema, at = pa.schema(list(plan.fields)), self._archiver.context.clock.now()
        self._sync(plan.topic, files)
        before = log.version
        if plan.whole:
            log.replace(schema, files, state, at)
        else:
            log.widen(schema)
            before_state = log.state
            if (
                files
                or before_state is None
                or before_state.schema != state.schema
                or through - before_state.through >= _IDLE_ENTRIES
            ):
                log.append(schema, files, state, at)
        self._through[plan.topic] = through
        self._sync_log(plan.topic, log, before)

    def _compact(self, topic: str, log: TopicLog) -> None:
        """Merge small files, in this process: together they are as large as one."""
        small: list[TopicFile] = []
        for file in sorted(log.files, key=lambda one: one.bytes):
            if file.bytes < _SMALL and sum(one.bytes for one in small) + file.bytes < _MERGED:
                small.append(file)
        if len(small) < FEWEST or log.state is None:
            return
        store, schema = self._files.store, pa.schema(list(log.fields))
        assert store is not None, "update returns without one"
        self._archiver.manifest.hold()
        tables = []
        for file in small:
            with store.open(f"{TOPICS}/{topic}/{file.path}") as stream:
                tables.append(pq.read_table(stream))
        whole = pa.concat_tables(tables, promote_options="permissive").sort_by("_offset")
        name = f"{log.version + 1}-{self._archiver.begun}-merged.parquet"
        merged = write_table(store, topic, name, whole)
        self._sync(topic, [merged])
        before = log.version
        log.compact(schema, merged, small, self._archiver.context.clock.now())
        self._sync_log(topic, log, before)

    def _sync(self, topic: str, files: Sequence[TopicFile]) -> None:
        self._files.sync([f"{TOPICS}/{topic}/{file.path}" for file in files])

    def _sync_log(self, topic: str, log: TopicLog, before: int) -> None:
        """Make the commits after the version ``before`` durable."""
        folder = f"{TOPICS}/{topic}/_delta_log"
        self._files.sync(
            [f"{folder}/{version:020d}.json" for version in range(before + 1, log.version + 1)]
        )

    def _note(self, text: str) -> None:
        """Say it once per run."""
        if text not in self._noted:
            self._noted.add(text)
            self._archiver.context.note(text)


def _chosen(lake: Lake, plans: Sequence[_Plan]) -> list[File]:
    """The files that may have messages that the tables need."""
    return [
        file
        for file in lake.of(MESSAGES)
        if any(
            file.last >= plan.target.start
            and (file.topics is None or file.topics[0] <= plan.topic <= file.topics[1])
            for plan in plans
        )
    ]
