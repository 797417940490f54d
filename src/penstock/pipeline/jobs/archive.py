"""``archive``: copies the log and the histories of its messages into the lake (A1)."""

from __future__ import annotations

from penstock.errors import BadInput
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.lake.archive import Archived, Archiver
from penstock.pipeline.lake.compaction import compact
from penstock.pipeline.lake.histories import archive_histories
from penstock.pipeline.lake.layout import TABLES
from penstock.pipeline.lake.topic_tables import TopicTables
from penstock.pipeline.twins import only_run

__all__ = ["Archiving", "archive"]


def archive(
    context: JobContext,
    *,
    history: bool = True,
    compaction: bool = True,
    topic_tables: bool = True,
    skip_missing: bool = False,
    tell: bool = True,
    step: int | None = None,
    adopt: bool = False,
) -> Summary:
    """Archive everything new, ``step`` entries per commit; if continuous, until asked to end.

    With ``topic_tables``, payloads of topics with a schema become typed columns too.

    With ``adopt``, continue a lake of an earlier epoch of the store, if all entries that the log
    and the lake share are the same.

    With ``tell=False`` the broker may not remove archived entries yet: the job ``retention``
    allows that after it has read the lake once more.
    """
    archiving = Archiving(
        context,
        history=history,
        compaction=compaction,
        topic_tables=topic_tables,
        skip_missing=skip_missing,
        tell=tell,
        step=step,
        adopt=adopt,
    )
    with only_run(context, "archive", context.lake):
        archiving.begin()
        while True:
            archiving.once()
            if not context.options.continuous or context.wait():
                break
    return archiving.summary()


class Archiving:
    """One run of the archiver."""

    def __init__(
        self,
        context: JobContext,
        *,
        history: bool = True,
        compaction: bool = True,
        topic_tables: bool = True,
        skip_missing: bool = False,
        tell: bool = True,
        step: int | None = None,
        adopt: bool = False,
    ) -> None:
        if step is not None and step < 1:
            raise BadInput("step must be at least 1.", field="step")
        self._archiver = Archiver(
            context, skip_missing=skip_missing, tell=tell, step=step, adopt=adopt
        )
        self._history = history
        self._compaction = compaction
        self._tables = TopicTables(self._archiver) if topic_tables else None
        self._typed = 0
        self._done = Archived()
        self._fewer = 0

    def begin(self) -> None:
        """Take over the lake."""
        self._archiver.begin()

    def once(self) -> None:
        """Archive everything new."""
        self._done += self._archiver.archive()
        if self._history:
            self._done += archive_histories(self._archiver)
        if self._compaction:
            self._fewer += sum(compact(self._archiver, table) for table in TABLES)
        if self._tables is not None:
            self._typed += self._tables.update()

    def summary(self) -> Summary:
        """Totals so far."""
        done = self._done
        return {
            "entries": done.entries,
            "payload_bytes": done.payload_bytes,
            "file_bytes": done.file_bytes,
            "files": done.files,
            "transitions": done.histories,
            "files_compacted": self._fewer,
            "typed": self._typed,
            "through": self._archiver.manifest.lake.through,
            "lake": self._archiver.context.lake,
        }
