"""``vacuum``: removes files that compaction and newer histories have replaced in the lake."""

from __future__ import annotations

from penstock.errors import BadInput
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.lake.ownership import require_lake
from penstock.pipeline.lake.vacuum import RETENTION_HOURS, expired_files

__all__ = ["vacuum"]


def vacuum(
    context: JobContext, *, retention_hours: int = RETENTION_HOURS, dry_run: bool = False
) -> Summary:
    """Remove files that left the lake longer ago than the retention, or only count them.

    Readers of versions older than the retention fail afterwards. An archiving run may go on
    meanwhile.
    """
    if retention_hours < 0:
        raise BadInput("retention_hours must not be negative.", field="retention_hours")
    files = context.lake_files()
    require_lake(context, files)
    expired = expired_files(files, retention_hours)
    if not dry_run:
        files.remove(list(expired))
    return {
        "files": len(expired),
        "bytes": sum(expired.values()),
        "dry_run": str(dry_run).lower(),
    }
