"""Checks that a lake belongs to a store, and that the log is still the archived one (A1).

The manifest of a lake records the store, its epoch and the last archived entry. A run that
archives, or lets the broker remove entries, compares all of that first: if another store's log
were archived into a lake, offsets that the lake already has would be skipped, and the store would
remove those entries.

A lake of an older version has no identity. The first store that uses it becomes its owner, if
every entry that both should have is the same in both. A lake of an earlier epoch of the same store
is continued under the same condition, but only if the operator asks for it (``adopt``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import BadInput, OtherStore
from penstock.model.identity import StoreIdentity, check_position, check_store
from penstock.model.message import Message
from penstock.pipeline.context import JobContext
from penstock.pipeline.lake.audit import check_copies
from penstock.pipeline.lake.checks import HASHED, corrupt, lost, row_hash
from penstock.pipeline.lake.commits import EntryMark, Lake
from penstock.pipeline.lake.files import Files
from penstock.pipeline.lake.layout import MESSAGES
from penstock.pipeline.lake.manifest import Manifest
from penstock.pipeline.lake.reader import read_files
from penstock.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "check_last",
    "check_left_out",
    "check_owner",
    "mark_at",
    "require_lake",
    "store_of",
]


def store_of(context: JobContext) -> StoreIdentity:
    """The identity of the store that the server has now."""
    return context.remote.ask(lambda q: q.identity())


def require_lake(context: JobContext, files: Files) -> Lake:
    """The lake according to its manifest; raises ``BadInput`` if there is none."""
    lake = Manifest(files).refresh()
    if not lake.number:
        raise BadInput(
            f"There is no lake at {context.lake}: it has no manifest. Check the path; "
            "the job archive creates a lake.",
            field="lake",
        )
    return lake


def check_owner(
    context: JobContext, files: Files, lake: Lake, store: StoreIdentity, *, adopt: bool = False
) -> None:
    """Raise ``OtherStore`` unless the lake was made from the log of this store."""
    what = f"The lake {context.lake}"
    if lake.store is not None and not (adopt and lake.store.store == store.store):
        check_store(store, lake.store, what)
    check_position(lake.through, context.remote.ask(lambda q: q.log_end()), what)
    check_last(context, lake)
    if lake.store != store and lake.through:
        _check_entries(context, files, lake, what)


def mark_at(context: JobContext, offset: int) -> EntryMark | None:
    """Identifies the log's entry at an offset; None if there is none."""
    page = context.remote.ask(lambda q: q.read_log(offset, limit=1))
    found = [entry.message for entry in page.entries if entry.message.offset == offset]
    return _mark(found[0]) if found else None


def _mark(message: Message) -> EntryMark:
    return EntryMark(
        offset=message.offset,
        id=message.id,
        topic=message.topic,
        published_at=message.published_at,
        size=message.size,
        checksum=message.checksum,
    )


def check_last(context: JobContext, lake: Lake) -> None:
    """Check that the log has the lake's last entry at its offset, unless retention removed it."""
    last = lake.last
    if last is None:
        return
    found = mark_at(context, last.offset)
    # Ask second, so that an entry that retention removes in between does not count as missing.
    trimmed = int(context.remote.ask(lambda q: q.log_trimmed()))
    if found == last or (found is None and last.offset < trimmed):
        return
    raise OtherStore(
        f"The lake {context.lake} ends with message {last.id} at offset {last.offset}, and the log "
        "has "
        + ("no entry" if found is None else f"message {found.id}, or another version of it,")
        + " there: the store was restored from a backup and used since.",
        field="store",
    )


def check_left_out(context: JobContext, lake: Lake) -> None:
    """Check that the log has no entries at offsets that the lake skipped as already removed.

    A store that was restored from an older backup may have such entries, and would remove them once
    the broker records that everything below the end of the lake is archived.
    """
    first = int(context.remote.ask(lambda q: q.log_start()))
    for start, end in ((0, lake.began or 0), *lake.gaps()):
        if first >= end:
            continue
        position = max(first, start)
        page = context.remote.ask(lambda q, position=position: q.read_log(position, limit=1))  # type: ignore[misc]
        if page.entries and page.entries[0].message.offset < end:
            raise OtherStore(
                f"The lake {context.lake} has nothing between the offsets {start} and {end}, and "
                f"the log has an entry at {page.entries[0].message.offset}: the store was restored "
                "from a backup. Archive it into a new lake.",
                field="store",
            )


def _check_entries(context: JobContext, files: Files, lake: Lake, what: str) -> None:
    """Check that every entry that the log and the lake should both have is the same in both."""
    first = int(context.remote.ask(lambda q: q.log_start()))
    chosen = [file for file in lake.of(MESSAGES) if file.last >= first]
    missing = lost(files.walk(MESSAGES), chosen)
    if missing:
        raise corrupt(missing, "Files of the lake are missing or of another size")
    rows = read_files(context.spark, files, chosen, MESSAGES, HASHED[MESSAGES], lenient=True)
    hashed = rows.select("offset", row_hash(MESSAGES).alias("hash"))
    copies = check_copies(_log(context, first, lake.through), hashed, lake)
    if copies.violation_count:
        raise OtherStore(
            f"{what} was not made from this log: of {copies.examined} entries that both should "
            f"have, {copies.violation_count} differ; {copies.violations[0].detail}.",
            field="store",
        )
    newest = max((file.last for file in lake.of(MESSAGES)), default=-1)
    trimmed = int(context.remote.ask(lambda q: q.log_trimmed()))
    if newest >= trimmed and mark_at(context, newest) is None:
        raise OtherStore(
            f"{what} ends with the entry at offset {newest}, but the log never had one there.",
            field="store",
        )


def _log(context: JobContext, start: int, end: int) -> DataFrame:
    return read_table(
        context.spark,
        context.server,
        "log",
        startingOffsets=min(start, end),
        endingOffsets=end,
        payload=False,
        failOnDataLoss=False,
    )
