"""Registered writes: a write under a given id is published once, however it is partitioned (P4).

A task knows its partition but not how many there are, and what a partition has published can be
compared only with the same partition of an earlier run (see ``chunks``). So a write with an id is
registered with the broker, topic by topic, before its first row, under a token of this run:

- The run that began it publishes.
- A run that finds it finished publishes nothing, whatever its partitions: it counts its rows, and
  fails at the end if there are not as many as were published.
- A run that finds it begun by another run and not finished is refused before its first row,
  unless the caller says that the partitions are the same (``samePartitions``).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from penstock.client import Client
from penstock.errors import OtherRun
from penstock.model.writes import Write
from penstock.pipeline.remote import Server

__all__ = ["Registration", "finish_writes", "is_finished"]


class Registration(Struct, frozen=True):
    """How the runs of one write are told apart."""

    write_id: str
    run: str
    """Of this run of the job; all of its tasks have it."""
    same_partitions: bool
    """The caller says that every run is cut into the same partitions."""


def is_finished(registration: Registration, topic: str, write: Write) -> bool:
    """Whether the write has nothing left to publish; ``OtherRun`` if nobody can tell what."""
    if registration.same_partitions or write.run == registration.run:
        return False
    if write.rows is not None:
        return True
    raise OtherRun(
        f"Another run has begun the write {registration.write_id!r} to {topic!r} and has not "
        "finished it, and this run may be cut into other partitions.",
        field="writeId",
    )


def finish_writes(
    server: Server,
    registration: Registration,
    published: Mapping[str, int],
    skipped: Mapping[str, int],
) -> None:
    """All tasks have ended: rows by topic that are published now, and that were before."""
    write_id, run = registration.write_id, registration.run

    async def finish(q: Client) -> None:
        for topic, rows in sorted(published.items()):
            await q.finish_write(topic, write_id, run, rows)
        for topic, rows in sorted(skipped.items()):
            write = await q.begin_write(topic, write_id, run)
            if write.rows != rows:
                raise OtherRun(
                    f"The write {write_id!r} to {topic!r} was finished with {write.rows} rows, "
                    f"and this run has {rows}. None of them was published.",
                    field="writeId",
                )

    with server.open() as remote:
        remote.ask(finish)
