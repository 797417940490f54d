"""What every commit of a table says of the lake, next to the files that it adds and removes (A1).

The newest commit of a run is complete: with the files of the table, it is what the manifest has.
So old commits can be removed. The blocks of a lake are in both tables: ``history`` has those whose
histories were read, ``messages`` those that were archived since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
import xxhash
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import LakeCorrupt
from penstock.model.identity import StoreIdentity
from penstock.pipeline.lake.commits import Block, EntryMark, File, Lake, Table
from penstock.pipeline.lake.layout import MESSAGES

__all__ = ["FORMAT", "TableState", "combine", "decode", "encode", "names_of", "state_after"]

#: The version of this format. Readers refuse newer ones.
FORMAT: Final = 1
#: Archived blocks whose histories were not read yet. More are merged in pairs.
_MOST_BLOCKS: Final = 256


class TableState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one table after a commit."""

    format: int = FORMAT
    number: int
    """The number of the commit: the version of the table plus ``base``."""
    base: int
    """Above 1 in a lake that an earlier version began, to continue its numbers."""
    token: str
    """Identifies the commit and its writer."""
    run: str
    at: int
    kind: Literal["begin", "archive", "history", "compact"]
    start: int | None = None
    end: int | None = None
    entries: int = 0
    begun: int
    """The number of the ``begin`` of the run that owns the table."""
    begins: tuple[int, ...] = ()
    """The last runs that began: they may have left files with these numbers."""
    files: int = 0
    """How many files the table has."""
    names: str = ""
    """The XOR of the hashes of their names."""
    store: StoreIdentity | None = None
    blocks: tuple[Block, ...] = ()
    through: int = 0
    began: int | None = None
    last: EntryMark | None = None


def encode(state: TableState) -> dict[str, Any]:
    """The state as a commit carries it."""
    found: dict[str, Any] = msgspec.to_builtins(state)
    return {"format": state.format, **found}


def decode(table: Table, found: Any) -> TableState:
    """The state that a commit carries; raises ``LakeCorrupt``."""
    try:
        if found["format"] > FORMAT:
            raise LakeCorrupt(f"The table {table} was written by a newer Penstock.", field="lake")
        return msgspec.convert(found, TableState)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise LakeCorrupt(
            f"The newest commit of the table {table} has no state of a lake: {error}.",
            field="lake",
        ) from error


def names_of(files: Iterable[File]) -> str:
    """The XOR of the hashes of the names of these files."""
    found = 0
    for file in files:
        found ^= xxhash.xxh3_64_intdigest(file.path.rpartition("/")[2].encode())
    return f"{found:X}"


def combine(messages: TableState, history: TableState | None, files: Sequence[File]) -> Lake:
    """The lake whose tables have these states and files, without their numbers."""
    read = () if history is None else history.blocks
    covered = read[-1].end if read else 0
    return Lake(
        through=messages.through,
        began=messages.began,
        store=messages.store,
        last=messages.last,
        blocks=(*read, *(block for block in messages.blocks if block.start >= covered)),
        files={file.path: file for file in files},
    )


def state_after(table: Table, state: TableState, lake: Lake) -> TableState:
    """The state of a table for a lake; everything else is as in ``state``."""
    files = lake.of(table)
    common = replace(state, files=len(files), names=names_of(files), store=lake.store)
    read = [number for number, block in enumerate(lake.blocks) if _is_read(block)]
    covered = read[-1] + 1 if read else 0
    if table == MESSAGES:
        return replace(
            common,
            blocks=_merged(lake.blocks[covered:]),
            through=lake.through,
            began=lake.began,
            last=lake.last,
        )
    return replace(common, blocks=lake.blocks[:covered])


def _is_read(block: Block) -> bool:
    return block.read_at is not None


def _merged(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Adjacent blocks as one, if there are too many."""
    while len(blocks) > _MOST_BLOCKS:
        after: list[Block] = []
        paired = False
        for block in blocks:
            if paired or not after or after[-1].end != block.start:
                after.append(block)
                paired = False
            else:
                last = after.pop()
                after.append(
                    Block(last.start, block.end, last.entries + block.entries, block.archived_at)
                )
                paired = True
        if len(after) == len(blocks):
            return blocks
        blocks = tuple(after)
    return blocks
