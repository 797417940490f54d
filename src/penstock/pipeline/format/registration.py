"""Registered writes: a write under a given id is published once, however it is partitioned (P4).

A task knows its partition but not how many there are, and what a partition has published can be
compared only with the same partition of an earlier run (see ``chunks``), as long as the server
remembers its chunks. So a write with an id, or a micro-batch, is registered with the broker,
topic by topic, before its first row, under a token of this run:

- The run that began it publishes.
- A run that finds it finished publishes nothing, whatever its partitions: it counts its rows, and
  fails at the end if there are not as many as were published.
- A run that finds it begun by another run and not finished is refused before its first row,
  unless the caller says that the partitions are the same (``samePartitions``) and all chunks are
  still remembered. Then it compares, and publishes what is missing.
- The same holds for a finished write whose input may have grown (``grows``): while all chunks are
  remembered it publishes what is new, and later it publishes nothing.

A registration is kept for longer than the chunks (``WRITE_KEPT_MS``).
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

#: For how long the server remembers a chunk: a query may be restarted after a long weekend.
BATCH_MS: Final = 7 * 24 * 3600 * 1000
#: For how long after its begin a write is compared: no chunk is forgotten while a run compares.
_COMPARED_MS: Final = BATCH_MS - 24 * 3600 * 1000


class Registration(Struct, frozen=True):
    """How the runs of one write are told apart."""

    write_id: str
    run: str
    """Of this run of the job; all of its tasks have it."""
    same_partitions: bool
    """The caller says that every run is cut into the same partitions."""
    number: int | None = None
    """Of a micro-batch; the write id is then that of the query."""
    grows: bool = False
    """Later runs may have more rows, in the same partitions as those that they share."""

    @property
    def name(self) -> str:
        """For messages."""
        number = "" if self.number is None else f" number {self.number}"
        return f"{self.write_id!r}{number}"


def is_finished(registration: Registration, topic: str, write: Write) -> bool:
    """Whether the write has nothing left to publish; ``OtherRun`` if nobody can tell what."""
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
    """All tasks have ended: rows by topic that are published now, and that were before."""
    write_id, run, number = registration.write_id, registration.run, registration.number

    async def finish(q: Client) -> None:
        for topic, rows in sorted(published.items()):
            await q.finish_write(topic, write_id, run, rows, number=number)
        for topic, rows in sorted(skipped.items()):
            write = await q.begin_write(topic, write_id, run, number=number)
            if write.rows != rows:
                raise OtherRun(
                    f"The write {registration.name} to {topic!r} was finished with {write.rows} "
                    f"rows, and this run has {rows}. None of them was published.",
                    field="writeId",
                )

    with server.open() as remote:
        remote.ask(finish)
