"""Compaction: merges many small files of a folder into few.

Archiving every few seconds creates files of a few kilobytes, and readers of the lake pay for each
one. The rows stay the same, as their digest proves, and the commit says so (``dataChange``). The
old files stay until ``vacuum`` removes them, for readers of earlier versions of the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from penstock.pipeline.lake.archive import FILE_BYTES, Archiver
from penstock.pipeline.lake.checks import combined, corrupt
from penstock.pipeline.lake.commits import Block, File, Table
from penstock.pipeline.lake.histories import block_of
from penstock.pipeline.lake.layout import HISTORY
from penstock.pipeline.lake.reader import read_files
from penstock.pipeline.lake.sessions import reading_payloads
from penstock.pipeline.lake.staging import stage

__all__ = ["compact", "groups"]

#: Files below a quarter of the target size are small.
_SMALL: Final = FILE_BYTES // 4
#: The fewest small files in a folder that are worth merging.
FEWEST: Final = 8


def groups(files: Sequence[File], blocks: tuple[Block, ...], fewest: int) -> list[list[File]]:
    """The files that are worth merging, per folder, in order.

    Histories of different blocks are not merged, because those of a block are replaced together.
    """
    folders: dict[tuple[str, int], list[File]] = defaultdict(list)
    for file in files:
        if _size(file) < _SMALL:
            block = block_of(file, blocks) if file.table == HISTORY else 0
            folders[file.path.rpartition("/")[0], block].append(file)
    found: list[list[File]] = []
    for small in folders.values():
        group: list[File] = []
        size = 0
        for file in sorted(small, key=lambda one: one.first):
            if group and size + _size(file) > FILE_BYTES:
                found.append(group)
                group, size = [], 0
            group.append(file)
            size += _size(file)
        found.append(group)
    return [group for group in found if len(group) >= fewest]


def _size(file: File) -> int:
    return max(file.bytes, file.payload_bytes)


def compact(archiver: Archiver, table: Table) -> int:
    """Merge small files; returns by how many files the lake has become smaller."""
    context, files, lake = archiver.context, archiver.files, archiver.manifest.lake
    fewer = 0
    for group in groups(lake.of(table), lake.blocks, FEWEST):
        if context.stopping.is_set():
            break
        wanted = combined(group)
        with reading_payloads(context.spark, wanted.largest):
            staged = stage(
                context.spark,
                files,
                read_files(context.spark, files, group, table).coalesce(1),
                table,
                begun=archiver.begun,
                partitions=archiver.manifest.partitions(table),
                most=wanted.rows,
                largest=wanted.largest,
            )
        if not wanted.same(staged.digest):
            raise corrupt([file.path for file in group], "Files are not what was archived")
        added = archiver.commit(
            "compact", staged, wanted.first, wanted.last + 1, removed=group, table=table
        )
        fewer += len(group) - len(added)
    return fewer
