"""Registered writes: a write with a given id is published once, however it is partitioned (P4).

A task knows its partition but not how many there are. A partition's rows can be compared only
with the same partition of an earlier run (see ``chunks``), while the server remembers its chunks.
So a write with an id, or a micro-batch, is registered with the broker, per topic, before its
first row, under a token of this run. If the rows name their topics, one registration covers all
topics, so that a run with other partitions cannot publish to a topic that the first run missed.

- The run that began the write publishes.
- A run that finds it finished publishes nothing, in any partitioning: it only counts its rows,
  and fails at the end if their number differs from the published one.
- A run that finds it begun by another run and not finished is refused before its first row,
  unless the caller states that the partitions are the same (``samePartitions``) and all chunks
  are still remembered. Then it compares, and publishes the missing rows.
- The same applies to a finished write whose input may have grown (``grows``): while all chunks
  are remembered it publishes the new rows, and later it publishes nothing.

A registration is kept for longer than its chunks (``WRITE_KEPT_MS``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.client import Client
from penstock.errors import OtherRun
from penstock.model.writes import Write
from penstock.pipeline.remote import Server

__all__ = ["BATCH_MS", "Registration", "finish_writes", "is_finished"]

#: How long the server remembers a chunk: a query may be restarted after a long weekend.
BATCH_MS: Final = 7 * 24 * 3600 * 1000
#: How long after its begin a write is compared, so that no chunk is forgotten during a run.
_COMPARED_MS: Final = BATCH_MS - 24 * 3600 * 1000


class Registration(Struct, frozen=True):
    """Identifies a write and the run that writes it."""

    write_id: str
    run: str
    """The token of this run of the job, shared by all of its tasks."""
    same_partitions: bool
    """The caller states that every run has the same partitions."""
    number: int | None = None
    """The number of a micro-batch; the write id is then that of the query."""
    grows: bool = False
    """Later runs may have more rows; shared rows are in the same partitions."""
    all_topics: bool = False
    """The rows name their topics: one registration covers all of them."""

    @property
    def name(self) -> str:
        """The write as named in messages."""
        number = "" if self.number is None else f" number {self.number}"
        return f"{self.write_id!r}{number}"


def is_finished(registration: Registration, topic: str, write: Write) -> bool:
    """Whether nothing is left to publish; raises ``OtherRun`` if that cannot be determined."""
    if write.run == registration.run:
        return False
    is_remembered = write.asked_at - write.begun_at < _COMPARED_MS
    if write.rows is not None:
        return not (registration.grows and is_remembered)
    if registration.same_partitions and is_remembered:
        return False
    why = (
        "the server may have forgotten what it has published"
        if registration.same_partitions
        else "this run may be cut into other partitions"
    )
    raise OtherRun(
        f"Another run has begun the write {registration.name} to {topic!r} and has not finished "
        f"it, and {why}.",
        field="writeId",
    )


def finish_writes(
    server: Server,
    registration: Registration,
    published: Mapping[str, int],
    skipped: Mapping[str, int],
) -> None:
    """Finish the writes after all tasks: rows by topic published now, and before."""
    write_id, run, number = registration.write_id, registration.run, registration.number

    async def finish(q: Client) -> None:
        for topic, rows in sorted(published.items()):
            await q.finish_write(topic, write_id, run, rows, number=number)
        for topic, rows in sorted(skipped.items()):
            write = await q.begin_write(
                topic, write_id, run, number=number, all_topics=registration.all_topics
            )
            if write.rows != rows:
                raise OtherRun(
                    f"The write {registration.name} to {topic!r} was finished with {write.rows} "
                    f"rows, and this run has {rows}. None of them was published.",
                    field="writeId",
                )

    with server.open() as remote:
        remote.ask(finish)
